import java.net.InetSocketAddress;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** Serves Hive's metastore on loopback, in memory: java Metastore.java PORT FOLDER LOCK_SECONDS. */
class Metastore {
  public static void main(String[] given) throws Exception {
    HiveConf conf = new HiveConf();
    conf.set("javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true");
    conf.set("datanucleus.connectionPoolingType", "HikariCP");
    conf.set("datanucleus.schema.autoCreateAll", "true");
    conf.set("hive.metastore.schema.verification", "false");
    conf.set("hive.metastore.warehouse.dir", "file://" + given[1] + "/warehouse");
    // As Iceberg asks of whoever runs one: it changes columns by their numbers, Hive by their places.
    conf.set("hive.metastore.disallow.incompatible.col.type.changes", "false");
    conf.set("hive.txn.timeout", given[2] + "s");
    TxnDbUtil.prepDb(conf);
    var handler = HiveMetaStore.newRetryingHMSHandler("metastore", conf, false);
    // What ends the locks of clients that died; a metastore does so where its compactor is on.
    var store = TxnUtils.getTxnStore(conf);
    Executors.newSingleThreadScheduledExecutor(Metastore::daemon)
        .scheduleWithFixedDelay(store::performTimeOuts, 1, 1, TimeUnit.SECONDS);
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", Integer.parseInt(given[0])));
    var served = new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler));
    new TThreadPoolServer(served).serve();
  }

  private static Thread daemon(Runnable work) {
    Thread thread = new Thread(work);
    thread.setDaemon(true);
    return thread;
  }
}
