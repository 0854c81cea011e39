// Runs the built command as a user would.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace attune::cli_test {

struct Outcome {
  int code = -1;  // exit code, or 128 + signal
  std::string out;
  std::string err;
};

struct RunOptions {
  std::string input;  // on stdin
  std::map<std::string, std::string>
      environment;            // added to a bare one: HOME is an empty directory
  std::string stdout_file;    // instead of a pipe
  std::string stderr_file;    // likewise
  bool no_streams = false;    // stdin, stdout and stderr are closed from the start
  bool close_stdout = false;  // the reader has gone before the first byte
  bool ignore_sigpipe = false;
  bool stranger = false;  // of another user, where the tests run as root
  bool terminal = false;  // stdout and stderr are one pseudo-terminal; both come in `out`
};

Outcome attune(const std::vector<std::string>& arguments, const RunOptions& options = {});

// A command on a pseudo-terminal of its own, to be talked to while it runs.
class Terminal {
 public:
  explicit Terminal(const std::vector<std::string>& arguments, const RunOptions& options = {});
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Until the text was written; false when the command ends before.
  bool read_until(const std::string& text);
  // As if typed. "\x03" is Ctrl-C: the terminal sends SIGINT to the command and what it started in
  // its process group.
  void type(const std::string& keys);
  // Ends it with SIGKILL.
  void kill();
  // To its end; `out` has everything that it wrote.
  Outcome finish();

 private:
  bool read_some();
  int child_ = -1;
  int terminal_ = -1;
  std::string out_;
};

// A directory of this test process' own, removed at its end.
std::string scratch_directory();
// Writes a file there and returns its path.
std::string scratch_file(const std::string& name, const std::string& text);
std::string read_file(const std::string& path);

}  // namespace attune::cli_test
