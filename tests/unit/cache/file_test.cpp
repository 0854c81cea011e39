// Where a cache file lies, and what that changes.
#include "cache/file.hpp"

#include <gmock/gmock.h>
#include <linux/magic.h>

#include "cache/database.hpp"
#include "tests/unit/cache/fixtures.hpp"

namespace attune::cache {
namespace {

using cache_testing::TemporaryDirectory;

TEST(NetworkFilesystem, IsToldByItsMagicNumber) {
  for (const std::uint32_t magic : std::initializer_list<std::uint32_t>{
           NFS_SUPER_MAGIC, SMB_SUPER_MAGIC, CIFS_SUPER_MAGIC, SMB2_SUPER_MAGIC, CEPH_SUPER_MAGIC,
           AFS_SUPER_MAGIC, CODA_SUPER_MAGIC, NCP_SUPER_MAGIC, V9FS_MAGIC, OCFS2_SUPER_MAGIC}) {
    EXPECT_TRUE(is_network_filesystem(magic)) << std::hex << magic;
  }
  // FUSE, Lustre, GPFS and BeeGFS: the kernel's header lacks them.
  for (const std::uint32_t magic : {0x65735546u, 0x0bd00bd0u, 0x47504653u, 0x19830326u}) {
    EXPECT_TRUE(is_network_filesystem(magic)) << std::hex << magic;
  }
  for (const std::uint32_t magic :
       std::initializer_list<std::uint32_t>{EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC, TMPFS_MAGIC,
                                            OVERLAYFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC}) {
    EXPECT_FALSE(is_network_filesystem(magic)) << std::hex << magic;
  }
}

TEST(NetworkFilesystem, ThisTestsDirectoryAndAMissingFileInItAreLocal) {
  const TemporaryDirectory directory;
  EXPECT_FALSE(on_network_filesystem(directory.file("")));
  EXPECT_FALSE(on_network_filesystem(directory.file("absent.db")));
  EXPECT_FALSE(on_network_filesystem("/nonexistent/at/all.db"));
}

TEST(NetworkFilesystem, AFileThereIsWaitedForLongerAndNeverMapped) {
  const TemporaryDirectory directory;
  ASSERT_TRUE(open_store(directory.file()).ok());
  for (const bool network : {false, true}) {
    const auto database = open_database(directory.file(), {.busy_timeout_ms = 1000}, network);
    EXPECT_EQ(database->execAndGet("PRAGMA busy_timeout").getInt(), network ? 4000 : 1000);
    EXPECT_EQ(database->execAndGet("PRAGMA mmap_size").getInt(), 0);
    EXPECT_EQ(database->execAndGet("PRAGMA journal_mode").getString(), "delete");
  }
}

}  // namespace
}  // namespace attune::cache
