#include "tuner/isolation/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

extern char** environ;

namespace attune {
namespace {

// Of what a child wrote to its standard error, what is worth keeping is at the end.
constexpr off_t kErrorTailBytes = 4096;
// No reply of a worker comes near; a child that writes without end is not obeyed.
constexpr std::size_t kMaxLineBytes = 16 << 20;

void close_fd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

}  // namespace

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(to_child_, other.to_child_);
  std::swap(from_child_, other.from_child_);
  std::swap(errors_, other.errors_);
  std::swap(received_, other.received_);
  return *this;
}

Result<ChildProcess> ChildProcess::start(const std::vector<std::string>& argv) {
  ChildProcess child;
  // A socket, because writing to one whose other end died is an error here and no signal.
  std::array<int, 2> in{-1, -1}, out{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, in.data()) != 0 ||
      pipe2(out.data(), O_CLOEXEC) != 0) {
    for (int fd : in) close_fd(fd);
    return Error{.id = "worker-start",
                 .message = fmt::format("cannot make pipes: {}", strerror(errno))};
  }
  child.to_child_ = in[1];
  child.from_child_ = out[0];
  child.errors_ = memfd_create("worker-stderr", MFD_CLOEXEC);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  if (child.errors_ >= 0) posix_spawn_file_actions_adddup2(&actions, child.errors_, STDERR_FILENO);
  // A terminal's Ctrl-C is for the parent, which ends its workers when it is ready to.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);

  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const int failed =
      posix_spawn(&child.pid_, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close_fd(in[0]);
  close_fd(out[1]);
  if (failed != 0) {
    child.pid_ = -1;
    return Error{.id = "worker-start",
                 .message = fmt::format("cannot start `{}`: {}", argv[0], strerror(failed))};
  }
  return child;
}

Result<std::string> ChildProcess::ask(const std::string& line, std::chrono::milliseconds deadline) {
  using std::chrono::steady_clock;
  if (!running()) return Error{.id = "worker-died", .message = "the worker is not running"};
  const auto until = steady_clock::now() + deadline;
  const std::string message = line + "\n";
  for (std::size_t sent = 0; sent < message.size();) {
    const ssize_t wrote =
        send(to_child_, message.data() + sent, message.size() - sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return died();
    sent += static_cast<std::size_t>(wrote);
  }
  while (true) {
    if (const auto end = received_.find('\n'); end != std::string::npos) {
      std::string reply = received_.substr(0, end);
      received_.erase(0, end + 1);
      return reply;
    }
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(until - steady_clock::now()).count();
    pollfd ready{from_child_, POLLIN, 0};
    const int count = left > 0 ? poll(&ready, 1, static_cast<int>(left)) : 0;
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || received_.size() > kMaxLineBytes) {
      kill();
      return Error{.id = "worker-hung",
                   .message = fmt::format("no answer within {:.1f} s",
                                          static_cast<double>(deadline.count()) / 1000)};
    }
    std::array<char, 4096> bytes;
    const ssize_t got = read(from_child_, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return died();
    received_.append(bytes.data(), static_cast<std::size_t>(got));
  }
}

Error ChildProcess::died() {
  // It closed its pipe, so it has ended or is about to.
  int status = 0;
  ::kill(pid_, SIGKILL);
  const bool known = waitpid(pid_, &status, 0) == pid_;
  pid_ = -1;
  Error error{.id = "worker-died", .message = "the worker ended"};
  if (known && WIFSIGNALED(status)) {
    error.message = fmt::format("the worker died of signal {} ({})", WTERMSIG(status),
                                strsignal(WTERMSIG(status)));
  } else if (known && WIFEXITED(status)) {
    error.message = fmt::format("the worker ended with exit code {}", WEXITSTATUS(status));
  }
  if (const off_t size = errors_ >= 0 ? lseek(errors_, 0, SEEK_END) : 0; size > 0) {
    error.detail.resize(static_cast<std::size_t>(std::min(size, kErrorTailBytes)));
    const ssize_t got = pread(errors_, error.detail.data(), error.detail.size(),
                              size - static_cast<off_t>(error.detail.size()));
    error.detail.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  }
  kill();
  return error;
}

void ChildProcess::kill() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  close_fd(to_child_);
  close_fd(from_child_);
  close_fd(errors_);
  received_.clear();
}

}  // namespace attune
