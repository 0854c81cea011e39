// A cache file by way of its folder, which is held open: the file that is checked is the file that
// is read. docs/trust.md says what is checked.
#pragma once

#include <string>

#include "generator/support/result.hpp"

namespace attune::cache {

// Whatever is renamed above the folder meanwhile, path() leads into it. In a folder that
// check_code() accepts, only its owner and root can put another file, or another journal, in the
// file's place.
class HeldFile {
 public:
  // Follows symbolic links, once. The file must be there: "cache-io".
  static Result<HeldFile> hold(const std::string& path);
  HeldFile(HeldFile&& other) noexcept;
  HeldFile& operator=(HeldFile&&) = delete;
  ~HeldFile();

  // For open(2), stat(2) and SQLite, as long as this object lives: "/proc/self/fd/7/attune.db".
  const std::string& held_path() const { return path_; }
  // Whether code of the file may be run, now: file and folder belong to this process' user or root,
  // and nobody else may write them. Else "cache-untrusted", which says what is wrong and what
  // helps.
  Status check_code() const;
  // Whether file and folder, which gets a journal, may be written, now. Else "cache-read-only".
  Status check_writable() const;

 private:
  HeldFile(int folder, std::string name, std::string shown);

  int folder_;
  std::string name_, shown_;  // in the folder; as the user knows it
  std::string path_;
  bool pinned_ = true;  // false: no /proc here, path_ is but a name
};

}  // namespace attune::cache
