// The cache file as a file: where it lies, how it comes into being, how a damaged one leaves.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generator/support/result.hpp"

namespace attune::cache {

// Tells a file from another that took its name.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const FileIdentity&) const = default;
};
std::optional<FileIdentity> identify(const std::string& path);

// True for the statfs(2) magic numbers of NFS, SMB, Lustre, GPFS, Ceph, BeeGFS, AFS, Coda, NCP,
// OCFS2, 9p and FUSE.
bool is_network_filesystem(std::uint32_t magic);

// True for NFS, SMB, Lustre, GPFS, Ceph, BeeGFS, AFS, 9p and FUSE: locks may be slow or missing
// there and memory maps unsafe. `path` or, when it is not there, its directory.
bool on_network_filesystem(const std::string& path);

// An empty file is what a `touch` or a full disk leaves; it may be replaced.
bool is_empty_file(const std::string& path);

// Fails with "cache-foreign-file" for a folder, a device and their kin.
Status check_regular(const std::string& path);

// Makes the file's directory if missing, only for its owner.
Status make_parent_directory(const std::string& path);

// Runs `fill` on a new file beside `path`, then gives it that name unless somebody else was first:
// readers see a whole file or none. The temporary file is gone afterwards in every case.
Status publish(const std::string& path, const std::function<Status(const std::string&)>& fill);

// Takes the damaged file `path`, and its journal, away from its name, unless it is no longer the
// file `seen`: then another process did, and false is returned. finish_set_aside() does the rest; a
// process that dies before leaves it to whoever opens the cache next.
Result<bool> set_aside(const std::string& path, FileIdentity seen);

// Runs `carry_over` on each file that set_aside() took away and then names it *.corrupt-<UTC time>;
// returns these names. Where `carry_over` fails, the file waits for the next time. Does nothing
// when another process is at it for longer than `wait_ms`.
Result<std::vector<std::string>> finish_set_aside(
    const std::string& path, int wait_ms,
    const std::function<Status(const std::string& damaged)>& carry_over);

// The schema version that the file's header states; nullopt where it does not bear Attune's mark.
std::optional<int> stated_version(const std::string& path);

// True when the bytes at `path` are (or once were) an Attune cache: its mark or its schema is
// there. Only for files that SQLite refused: closing a descriptor drops this process's locks on the
// file.
bool looks_like_cache(const std::string& path);

}  // namespace attune::cache
