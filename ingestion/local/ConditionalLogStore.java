package oncelake;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.FileAlreadyExistsException;
import java.security.DigestInputStream;
import java.security.DigestOutputStream;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Puts a commit where none is: S3 decides between writers, and not the one JVM they are all in. */
public final class ConditionalLogStore extends S3SingleDriverLogStore {
    public ConditionalLogStore(Configuration configuration) {
        super(configuration);
    }

    @Override
    public void write(
            Path path, Iterator<String> lines, Boolean overwrite, Configuration configuration)
            throws IOException {
        FileSystem store = path.getFileSystem(configuration);
        FSDataOutputStreamBuilder<?, ?> object = store.createFile(path);
        object.create().overwrite(overwrite);
        object.must("fs.option.create.conditional.overwrite", !overwrite);
        MessageDigest ours = sha256();
        OutputStream digested = new DigestOutputStream(object.build(), ours);
        // Where a line cannot be had, the object is not closed, and so not put.
        while (lines.hasNext()) {
            digested.write((lines.next() + "\n").getBytes(StandardCharsets.UTF_8));
        }
        try {
            digested.close();
        } catch (IOException refusal) {
            if (overwrite) {
                throw refusal;
            }
            // A put whose answer was lost is repeated, and then refused for what it put itself.
            if (!MessageDigest.isEqual(ours.digest(), digestOf(path, store, refusal))) {
                throw new FileAlreadyExistsException(path.toString());
            }
        }
    }

    /** Returns the digest of what is there; where nothing is, the refusal had another reason. */
    private static byte[] digestOf(Path path, FileSystem store, IOException refusal)
            throws IOException {
        MessageDigest theirs = sha256();
        try (InputStream object = new DigestInputStream(store.open(path), theirs)) {
            object.transferTo(OutputStream.nullOutputStream());
        } catch (FileNotFoundException absent) {
            throw refusal;
        }
        return theirs.digest();
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException absent) {
            throw new IllegalStateException(absent);
        }
    }
}
