package oncelake;

import java.io.IOException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.S3AFileSystem;

/**
 * S3 without the empty objects that stand for folders of a table.
 *
 * <p>Nothing needs them, and their names end with a slash: others list them without it, and then
 * can neither read nor delete them.
 */
public final class FolderlessS3 extends S3AFileSystem {
    @Override
    public boolean mkdirs(Path folder, FsPermission permission) throws IOException {
        return folder.toString().contains("/_delta_log/") || super.mkdirs(folder, permission);
    }

    @Override
    protected void maybeCreateFakeParentDirectory(Path path) {}
}
