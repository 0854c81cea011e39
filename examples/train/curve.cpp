#include "curve.hpp"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <functional>
#include <iterator>
#include <utility>

#include "shared.hpp"

namespace train {
namespace {

class File {
 public:
  explicit File(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "w")) {
    if (file_ == nullptr) fail();
  }
  ~File() {
    if (file_ != nullptr) std::fclose(file_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  __attribute__((format(printf, 2, 3))) void print(const char* format, ...) {
    va_list values;
    va_start(values, format);
    std::vfprintf(file_, format, values);
    va_end(values);
  }
  void close() {
    const bool is_bad = std::ferror(file_) != 0;
    if (std::fclose(std::exchange(file_, nullptr)) != 0 || is_bad) fail();
  }

 private:
  [[noreturn]] void fail() const { throw Error(Exit::kFailed, path_ + ": cannot be written"); }
  std::string path_;
  std::FILE* file_;
};

constexpr const char* kInk = "#1c2430";
constexpr const char* kFaint = "#d9dde3";
constexpr const char* kAttune = "#1b7f5c";
constexpr const char* kReference = "#f9c46b";
constexpr const char* kAllowed = "#c2410c";

// A box of the picture, and what its edges stand for.
struct Panel {
  double left = 72, width = 624, top, height;
  double steps, low, high;
  double x(double step) const { return left + width * step / steps; }
  double y(double value) const {
    return top + height * (high - std::clamp(value, low, high)) / (high - low);
  }
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    result += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return result;
}

// 1, 2 or 5 times a power of ten: about six of them in `span`.
double tick_of(double span) {
  const double power = std::pow(10, std::floor(std::log10(span / 6)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (span / (factor * power) <= 6) return factor * power;
  }
  return 10 * power;
}

void frame(File& file, const Panel& panel, double tick,
           const std::function<std::string(double)>& label) {
  for (double value = std::ceil(panel.low / tick) * tick; value <= panel.high + tick / 1e6;
       value += tick) {
    file.print("<path d=\"M%.1f %.1fh%.0f\" stroke=\"%s\"/>\n", panel.left, panel.y(value),
               panel.width, kFaint);
    file.print("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\" class=\"a\">%s</text>\n",
               panel.left - 8, panel.y(value) + 4, label(value).c_str());
  }
  const double step = std::max(1.0, tick_of(panel.steps));
  for (double at = 0; at <= panel.steps; at += step) {
    file.print("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"a\">%.0f</text>\n",
               panel.x(at), panel.top + panel.height + 16, at);
  }
}

void line(File& file, const Panel& panel, const std::vector<double>& values, const char* colour,
          double width) {
  file.print(
      "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\" "
      "stroke-linejoin=\"round\" points=\"",
      colour, width);
  for (std::size_t i = 0; i < values.size(); ++i) {
    file.print("%s%.1f,%.1f", i == 0 ? "" : " ", panel.x(static_cast<double>(i + 1)),
               panel.y(values[i]));
  }
  file.print("\"/>\n");
}

void legend(File& file, double x, double y, const char* colour, double width, const char* text) {
  file.print("<path d=\"M%.1f %.1fh24\" stroke=\"%s\" stroke-width=\"%.1f\"/>\n", x, y, colour,
             width);
  file.print("<text x=\"%.1f\" y=\"%.1f\" class=\"t\">%s</text>\n", x + 32, y + 4, text);
}

std::vector<double> values_of(const Curve& curve, double Point::* member) {
  std::vector<double> values;
  for (const Point& point : curve.points) values.push_back(point.*member);
  return values;
}

std::vector<double> losses_of(const Curve& curve) { return values_of(curve, &Point::loss); }

std::vector<double> powers_of_ten(std::vector<double> values) {
  for (double& value : values) value = std::log10(std::max(value, 1e-30));
  return values;
}

// From the reference, as powers of ten; what does not differ is far below.
std::vector<double> apart(const Curve& curve, std::vector<double> losses) {
  losses.resize(std::min(losses.size(), curve.points.size()));
  for (std::size_t i = 0; i < losses.size(); ++i) {
    losses[i] = std::abs(losses[i] - curve.points[i].reference);
  }
  return powers_of_ten(std::move(losses));
}

const char* colour_of(std::size_t other) {
  constexpr const char* kColours[] = {"#2563eb", "#a855f7", "#5a6472"};
  return kColours[other % std::size(kColours)];
}

void draw_losses(File& file, const Curve& curve) {
  Panel panel{.top = 84,
              .height = 260,
              .steps = static_cast<double>(curve.points.size()),
              .low = HUGE_VAL,
              .high = 0};
  for (const Point& point : curve.points) {
    if (!std::isfinite(point.loss)) continue;
    panel.low = std::min(panel.low, std::floor(point.loss * 2) / 2);
    panel.high = std::max(panel.high, std::ceil(point.loss * 2) / 2);
  }
  if (panel.low >= panel.high) panel.low = 0, panel.high = std::max(panel.high, 1.0);
  frame(file, panel, tick_of(panel.high - panel.low), [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    return std::string(text);
  });
  double legend_y = 104;
  const auto draw = [&](const std::vector<double>& values, const char* colour, double width,
                        const std::string& name) {
    line(file, panel, values, colour, width);
    legend(file, 400, legend_y, colour, width, escaped(name).c_str());
    legend_y += 20;
  };
  if (curve.is_compared) {
    draw(values_of(curve, &Point::reference), kReference, 5,
         "attention by its definition, in fp64");
  }
  for (std::size_t i = 0; i < curve.others.size(); ++i) {
    std::vector<double> losses = curve.others[i].losses;
    losses.resize(std::min(losses.size(), curve.points.size()));
    draw(losses, colour_of(i), 1.5, curve.others[i].name);
  }
  draw(losses_of(curve), kAttune, 1.5,
       curve.is_compared ? "Attune's kernels, " + curve.device : "loss, " + curve.device);
}

void draw_differences(File& file, const Curve& curve) {
  Panel panel{.top = 412,
              .height = 180,
              .steps = static_cast<double>(curve.points.size()),
              .low = -9,
              .high = -9};
  const std::vector<double> allowed = powers_of_ten(values_of(curve, &Point::allowed));
  std::vector<std::vector<double>> differences;
  for (const OtherCurve& other : curve.others) differences.push_back(apart(curve, other.losses));
  differences.push_back(apart(curve, losses_of(curve)));
  for (const double value : allowed) panel.high = std::max(panel.high, std::ceil(value));
  for (const std::vector<double>& difference : differences) {
    for (const double value : difference) panel.high = std::max(panel.high, std::ceil(value));
  }
  panel.high = std::min(panel.high, 3.0);
  frame(file, panel, 1, [](double value) {
    char text[32];
    std::snprintf(text, sizeof text, "1e%.0f", value);
    return std::string(text);
  });
  line(file, panel, allowed, kAllowed, 1.5);
  for (std::size_t i = 0; i < differences.size(); ++i) {
    line(file, panel, differences[i], i < curve.others.size() ? colour_of(i) : kAttune, 1);
  }
  legend(file, 400, 572, kAttune, 1,
         curve.others.empty() ? "difference of the two losses"
                              : "differences from it, in colours as above");
  legend(file, 400, 552, kAllowed, 1.5,
         curve.others.empty() ? "allowed: 8 x what rounding makes of it"
                              : "allowed in fp32: 8 x rounding's part");
}

}  // namespace

OtherCurve read_csv(const std::string& name, const std::string& path) {
  OtherCurve curve{.name = name, .losses = {}};
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const bool is_table = line.starts_with("step,loss");
  while (is_table && std::getline(file, line)) {
    double loss = 0;
    if (std::sscanf(line.c_str(), "%*u,%lf", &loss) != 1) break;
    curve.losses.push_back(loss);
  }
  if (curve.losses.empty() || !file.eof()) {
    throw Error(Exit::kBadInput, path + ": no table that --csv has written");
  }
  return curve;
}

void write_csv(const Curve& curve, const std::string& path) {
  File file(path);
  file.print(curve.is_compared ? "step,loss,reference,allowed\n" : "step,loss\n");
  for (std::size_t i = 0; i < curve.points.size(); ++i) {
    const Point& point = curve.points[i];
    file.print("%zu,%.17g", i + 1, point.loss);
    if (curve.is_compared) file.print(",%.17g,%.17g", point.reference, point.allowed);
    file.print("\n");
  }
  file.close();
}

void write_svg(const Curve& curve, const std::string& subtitle, const std::string& path) {
  const int height = curve.is_compared ? 640 : 390;
  File file(path);
  file.print(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 %d\" width=\"720\" "
      "height=\"%d\">\n<title>Loss of each step</title>\n",
      height, height);
  file.print(
      "<style>text{font-family:ui-sans-serif,system-ui,sans-serif;fill:%s}"
      ".h{font-size:17px;font-weight:600}.t{font-size:12.5px}"
      ".a{font-size:11px;fill:#5a6472}</style>\n",
      kInk);
  file.print("<rect width=\"720\" height=\"%d\" fill=\"#ffffff\"/>\n", height);
  file.print("<text x=\"72\" y=\"28\" class=\"h\">Loss of each step, nats a character</text>\n");
  file.print("<text x=\"72\" y=\"50\" class=\"t\">%s</text>\n", escaped(subtitle).c_str());
  draw_losses(file, curve);
  if (curve.is_compared) draw_differences(file, curve);
  file.print("</svg>\n");
  file.close();
}

}  // namespace train
