#include "tests/fault/fault_vfs.hpp"

#include <signal.h>
#include <sqlite3.h>
#include <unistd.h>

namespace attune::fault_testing {
namespace {

constexpr const char* kName = "fault";

Plan armed;
int call_count = 0;

sqlite3_vfs* system_vfs() {
  static sqlite3_vfs* const vfs = sqlite3_vfs_find(nullptr);
  return vfs;
}

enum class Call {
  kAsk,     // opening, its length, its locks, whether it is there
  kCreate,  // opening a file that need not be there
  kRead,
  kWrite,
  kOther  // sync, truncation, deletion
};

bool concerns(Fault fault, Call call) {
  switch (fault) {
    case Fault::kNone:
      return false;
    case Fault::kNoSpace:
      return call == Call::kWrite || call == Call::kCreate;
    case Fault::kShortWrite:
      return call == Call::kWrite;
    case Fault::kIoError:
      return true;
    case Fault::kKill:
      return call == Call::kWrite || call == Call::kOther;
  }
  return false;
}

// True when this call is to fail.
bool strikes(Call call) {
  if (!concerns(armed.fault, call)) return false;
  ++call_count;
  const bool now = armed.for_good ? call_count >= armed.at_call : call_count == armed.at_call;
  if (now && armed.fault == Fault::kKill) {
    kill(getpid(), SIGKILL);
    pause();
  }
  return now;
}

struct File {
  sqlite3_file base;
  sqlite3_file* real;
};
sqlite3_file* real(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real; }

int on_close(sqlite3_file* file) { return real(file)->pMethods->xClose(real(file)); }
int on_read(sqlite3_file* file, void* to, int bytes, sqlite3_int64 at) {
  if (strikes(Call::kRead)) return SQLITE_IOERR_READ;
  return real(file)->pMethods->xRead(real(file), to, bytes, at);
}
int on_write(sqlite3_file* file, const void* from, int bytes, sqlite3_int64 at) {
  if (strikes(Call::kWrite)) {
    if (armed.fault == Fault::kShortWrite)
      real(file)->pMethods->xWrite(real(file), from, bytes / 2, at);
    return armed.fault == Fault::kIoError ? SQLITE_IOERR_WRITE : SQLITE_FULL;
  }
  return real(file)->pMethods->xWrite(real(file), from, bytes, at);
}
int on_truncate(sqlite3_file* file, sqlite3_int64 size) {
  if (strikes(Call::kOther)) return SQLITE_IOERR_TRUNCATE;
  return real(file)->pMethods->xTruncate(real(file), size);
}
int on_sync(sqlite3_file* file, int flags) {
  if (strikes(Call::kOther)) return SQLITE_IOERR_FSYNC;
  return real(file)->pMethods->xSync(real(file), flags);
}
int on_file_size(sqlite3_file* file, sqlite3_int64* size) {
  if (strikes(Call::kAsk)) return SQLITE_IOERR_FSTAT;
  return real(file)->pMethods->xFileSize(real(file), size);
}
int on_lock(sqlite3_file* file, int level) {
  if (strikes(Call::kAsk)) return SQLITE_IOERR_LOCK;
  return real(file)->pMethods->xLock(real(file), level);
}
int on_unlock(sqlite3_file* file, int level) {
  // Without its effect the file would stay locked: what a system does that fails there is to let
  // go.
  const bool fails = strikes(Call::kAsk);
  const int result = real(file)->pMethods->xUnlock(real(file), level);
  return fails ? SQLITE_IOERR_UNLOCK : result;
}
int on_check_lock(sqlite3_file* file, int* out) {
  if (strikes(Call::kAsk)) return SQLITE_IOERR_CHECKRESERVEDLOCK;
  return real(file)->pMethods->xCheckReservedLock(real(file), out);
}
int on_control(sqlite3_file* file, int op, void* argument) {
  return real(file)->pMethods->xFileControl(real(file), op, argument);
}
int on_sector_size(sqlite3_file* file) { return real(file)->pMethods->xSectorSize(real(file)); }
int on_characteristics(sqlite3_file* file) {
  return real(file)->pMethods->xDeviceCharacteristics(real(file));
}

// Version 1: without shared memory and memory maps, which a cache uses neither of.
constexpr sqlite3_io_methods kMethods{1,
                                      on_close,
                                      on_read,
                                      on_write,
                                      on_truncate,
                                      on_sync,
                                      on_file_size,
                                      on_lock,
                                      on_unlock,
                                      on_check_lock,
                                      on_control,
                                      on_sector_size,
                                      on_characteristics,
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      nullptr};

int on_open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  auto* mine = reinterpret_cast<File*>(file);
  mine->base.pMethods = nullptr;
  if (strikes((flags & SQLITE_OPEN_CREATE) != 0 ? Call::kCreate : Call::kAsk))
    return SQLITE_CANTOPEN;
  mine->real = reinterpret_cast<sqlite3_file*>(mine + 1);
  const int result = system_vfs()->xOpen(system_vfs(), name, mine->real, flags, out_flags);
  if (result == SQLITE_OK) mine->base.pMethods = &kMethods;
  return result;
}
int on_delete(sqlite3_vfs*, const char* name, int sync_directory) {
  if (strikes(Call::kOther)) return SQLITE_IOERR_DELETE;
  return system_vfs()->xDelete(system_vfs(), name, sync_directory);
}

int on_access(sqlite3_vfs*, const char* name, int flags, int* out) {
  if (strikes(Call::kAsk)) return SQLITE_IOERR_ACCESS;
  return system_vfs()->xAccess(system_vfs(), name, flags, out);
}

}  // namespace

std::string arm(const Plan& plan) {
  static sqlite3_vfs vfs = [] {
    sqlite3_vfs shim = *system_vfs();
    shim.zName = kName;
    shim.pNext = nullptr;
    shim.szOsFile = static_cast<int>(sizeof(File)) + system_vfs()->szOsFile;
    shim.xOpen = on_open;
    shim.xDelete = on_delete;
    shim.xAccess = on_access;
    return shim;
  }();
  sqlite3_vfs_register(&vfs, 0);
  armed = plan;
  call_count = 0;
  return kName;
}

int calls() { return call_count; }

}  // namespace attune::fault_testing
