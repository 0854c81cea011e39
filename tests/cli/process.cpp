#include "tests/cli/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace attune::cli_test {
namespace {

struct Pipe {
  int read = -1, write = -1;
  Pipe() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) std::abort();
    read = ends[0];
    write = ends[1];
  }
};

// Everything both descriptors give until both end.
void drain(int out, std::string& out_text, int err, std::string& err_text) {
  pollfd descriptors[] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
  std::string* texts[] = {&out_text, &err_text};
  char buffer[4096];
  while (descriptors[0].fd >= 0 || descriptors[1].fd >= 0) {
    if (poll(descriptors, 2, -1) < 0) break;
    for (int i = 0; i < 2; ++i) {
      if (descriptors[i].fd < 0 || descriptors[i].revents == 0) continue;
      const ssize_t got = read(descriptors[i].fd, buffer, sizeof buffer);
      if (got > 0) {
        texts[i]->append(buffer, static_cast<std::size_t>(got));
      } else {  // a pseudo-terminal ends with EIO
        descriptors[i].fd = -1;
      }
    }
  }
}

void write_to(const std::string& file, int pipe, int stream) {
  dup2(file.empty() ? pipe : open(file.c_str(), O_WRONLY | O_CLOEXEC), stream);
}

[[noreturn]] void become(const std::vector<std::string>& arguments, const RunOptions& options) {
  std::map<std::string, std::string> variables = {{"HOME", scratch_directory()}, {"TERM", "xterm"}};
  for (const char* kept : {"PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "ASAN_OPTIONS"}) {
    if (const char* value = std::getenv(kept)) variables[kept] = value;
  }
  for (const auto& [name, value] : options.environment) variables[name] = value;
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  std::vector<char*> argv, envp;
  static std::string program = ATTUNE_BINARY;
  argv.push_back(program.data());
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  for (std::string& one : environment) envp.push_back(one.data());
  envp.push_back(nullptr);
  if (options.stranger && geteuid() == 0 && setuid(54321) != 0) _exit(126);
  signal(SIGPIPE, options.ignore_sigpipe ? SIG_IGN : SIG_DFL);
  execve(program.c_str(), argv.data(), envp.data());
  _exit(127);
}

int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

Terminal::Terminal(const std::vector<std::string>& arguments, const RunOptions& options) {
  scratch_directory();  // made by the parent, which removes it
  child_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
  if (child_ == 0) become(arguments, options);
}

void Terminal::kill() { ::kill(child_, SIGKILL); }

Terminal::~Terminal() {
  if (child_ > 0) {
    kill();
    wait_for(child_);
  }
  if (terminal_ >= 0) close(terminal_);
}

bool Terminal::read_some() {
  char buffer[4096];
  const ssize_t got = read(terminal_, buffer, sizeof buffer);  // EIO at its end
  if (got > 0) out_.append(buffer, static_cast<std::size_t>(got));
  return got > 0;
}

bool Terminal::read_until(const std::string& text) {
  while (out_.find(text) == std::string::npos) {
    if (!read_some()) return false;
  }
  return true;
}

void Terminal::type(const std::string& keys) {
  if (write(terminal_, keys.data(), keys.size()) < 0) std::abort();
}

Outcome Terminal::finish() {
  while (read_some()) {
  }
  Outcome outcome{.out = out_};
  outcome.code = wait_for(child_);
  child_ = -1;
  return outcome;
}

Outcome attune(const std::vector<std::string>& arguments, const RunOptions& options) {
  scratch_directory();  // made by the parent, which removes it
  if (options.terminal) return Terminal(arguments, options).finish();
  Outcome outcome;
  Pipe in, out, err;
  // Before the fork, so that no reader exists when the child writes.
  if (options.close_stdout) close(out.read);
  const pid_t child = fork();
  if (child == 0) {
    dup2(in.read, STDIN_FILENO);
    write_to(options.stdout_file, out.write, STDOUT_FILENO);
    write_to(options.stderr_file, err.write, STDERR_FILENO);
    if (options.no_streams) close_range(STDIN_FILENO, STDERR_FILENO, 0);
    become(arguments, options);
  }
  close(in.read);
  close(out.write);
  close(err.write);
  signal(SIGPIPE, SIG_IGN);  // the child may not read its input
  // Inputs are smaller than a pipe's buffer, or the child reads them before it answers.
  std::size_t sent = 0;
  while (sent < options.input.size()) {
    const ssize_t wrote = write(in.write, options.input.data() + sent, options.input.size() - sent);
    if (wrote <= 0) break;
    sent += static_cast<std::size_t>(wrote);
  }
  close(in.write);
  drain(options.close_stdout ? -1 : out.read, outcome.out, err.read, outcome.err);
  if (!options.close_stdout) close(out.read);
  close(err.read);
  outcome.code = wait_for(child);
  return outcome;
}

std::string scratch_directory() {
  struct Directory {
    std::string path = (std::filesystem::temp_directory_path() / "attune-cli-XXXXXX").string();
    Directory() {
      if (mkdtemp(path.data()) == nullptr) std::abort();
    }
    ~Directory() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const Directory directory;
  return directory.path;
}

std::string scratch_file(const std::string& name, const std::string& text) {
  const std::string path = scratch_directory() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace attune::cli_test
