package oncelake;

import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.fs.s3a.S3AFileSystem;

/**
 * S3 without the empty objects that stand for folders.
 *
 * <p>Nothing needs them, and their names end with a slash: others list them without it, and then
 * can neither read nor delete them.
 */
public final class FolderlessS3 extends S3AFileSystem {
    @Override
    public boolean mkdirs(Path folder, FsPermission permission) {
        return true;
    }

    @Override
    protected void maybeCreateFakeParentDirectory(Path path) {}
}
