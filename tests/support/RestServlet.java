import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Serves Iceberg's own REST servlet, on a catalog in SQLite: java RestServlet.java PORT FOLDER. */
class RestServlet {
  public static void main(String[] given) throws Exception {
    JdbcCatalog catalog = new JdbcCatalog();
    catalog.setConf(new org.apache.hadoop.conf.Configuration());
    catalog.initialize(
        "servlet",
        Map.of(
            "uri", "jdbc:sqlite:" + given[1] + "/catalog.db",
            "warehouse", "file://" + given[1] + "/warehouse",
            "jdbc.schema-version", "V1"));
    ServletContextHandler handler = new ServletContextHandler();
    handler.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
    Server server = new Server(new java.net.InetSocketAddress("127.0.0.1", Integer.parseInt(given[0])));
    server.setHandler(handler);
    server.start();
    server.join();
  }
}
