import java.net.InetSocketAddress;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TSetIpAddressProcessor;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.ql.txn.AcidHouseKeeperService;
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
    conf.set("hive.timedout.txn.reaper.start", "1s");
    conf.set("hive.timedout.txn.reaper.interval", "1s");
    TxnDbUtil.prepDb(conf);
    var handler = HiveMetaStore.newRetryingHMSHandler("metastore", conf, false);
    // What ends the locks of clients that died; a metastore has it where its compactor is on.
    new AcidHouseKeeperService().start(conf);
    var socket = new TServerSocket(new InetSocketAddress("127.0.0.1", Integer.parseInt(given[0])));
    var served = new TThreadPoolServer.Args(socket).processor(new TSetIpAddressProcessor<>(handler));
    new TThreadPoolServer(served).serve();
  }
}
