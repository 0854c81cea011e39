#include "cli/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "cli/output.hpp"

namespace attune::cli {
namespace {

constexpr int kBarCells = 24;

std::string bar(double fraction) {
  const int eighths = static_cast<int>(fraction * kBarCells * 8);
  static constexpr const char* kPartial[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string cells;
  for (int i = 0; i < eighths / 8; ++i) cells += "█";
  cells += kPartial[eighths % 8];
  const int used = eighths / 8 + (eighths % 8 != 0);
  return cells + std::string(static_cast<std::size_t>(kBarCells - used), ' ');
}

// What stderr does not take, which may be closed or on a full disk, is lost: no reason to end.
void say(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

std::size_t columns() {
  winsize size = {};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

std::string duration(double seconds) {
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<long>(seconds);
  if (whole < 3600) return fmt::format("{} m {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} m", whole / 3600, whole / 60 % 60);
}

Progress::Progress(std::string title)
    : title_(std::move(title)), terminal_(is_terminal(Stream::kErr)) {}

Progress::~Progress() { clear(); }

void Progress::update(int done, int total, std::string_view text) {
  const double fraction = total > 0 ? std::clamp(static_cast<double>(done) / total, 0.0, 1.0) : 0;
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_) {
    // A log wants the start, the end and a sign of life between. Work starts with its first total:
    // what is said before is that it waits.
    const bool first = last_ == std::chrono::steady_clock::time_point();
    const bool start = total > 0 && !started_;
    const bool end = total > 0 && done >= total && !ended_;
    if (!first && !start && !end && now - last_ < std::chrono::seconds(10)) return;
    started_ = total > 0;
    ended_ = total > 0 && done >= total;
    last_ = now;
    say(fmt::format("{}: {}/{} {}\n", title_, done, total, text));
    return;
  }
  // Ten times a second is as smooth as a person sees; a new stage, the text's first word, is shown
  // however short it is.
  const std::string_view stage = text.substr(0, text.find_first_of(" ,"));
  const bool soon = now - last_ < std::chrono::milliseconds(100);
  if (drawn_ && done < total && stage == stage_ && soon) return;
  last_ = now;
  stage_ = stage;
  std::string rest = fmt::format("{:>3.0f} % {}/{} {}", fraction * 100, done, total, text);
  const std::size_t taken = title_.size() + kBarCells + 4;
  rest = rest.substr(0, std::max<std::size_t>(columns(), taken + 12) - taken);
  say(fmt::format("\r\033[K{} │{}│ {}", title_, bar(fraction), rest));
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  say("\r\033[K");
  drawn_ = false;
}

}  // namespace attune::cli
