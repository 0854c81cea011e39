// A progress bar on a terminal, a line now and then elsewhere. Writes to stderr.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace attune::cli {

class Progress {
 public:
  explicit Progress(std::string title);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(int done, int total, std::string_view text);
  // Removes the bar, so that other output starts on a clean line.
  void clear();

 private:
  std::string title_;
  bool terminal_;
  bool drawn_ = false;
  std::string stage_;  // as drawn
  // Where there is no terminal: the start, and the end, was told.
  bool started_ = false, ended_ = false;
  std::chrono::steady_clock::time_point last_{};
};

// "1 m 20 s".
std::string duration(double seconds);

}  // namespace attune::cli
