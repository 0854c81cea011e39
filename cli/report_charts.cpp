#include "cli/report_charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/chart_axis.hpp"
#include "cli/output.hpp"

namespace attune::cli {
namespace {

constexpr double kWidth = 420, kHeight = 280, kLeft = 58, kRight = 14, kTop = 14, kBottom = 42;

std::string open_chart(std::string_view label) {
  return fmt::format("<svg class=\"chart\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">",
                     kWidth, kHeight, escape(label));
}

std::string frame(const Axis& x, const Axis& y, std::string_view x_label,
                  std::string_view y_label) {
  std::string svg;
  for (const double value : ticks(x)) {
    const double at = x.at(value);
    svg += fmt::format("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>",
                       at, kTop, kHeight - kBottom);
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", at,
                       kHeight - kBottom + 14, short_number(value));
  }
  for (const double value : ticks(y)) {
    const double at = y.at(value);
    svg += fmt::format("<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>",
                       kLeft, kWidth - kRight, at, at);
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 5,
                       at + 3, short_number(value));
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                     (kLeft + kWidth - kRight) / 2, kHeight - 8, escape(x_label));
  svg += fmt::format(
      "<text transform=\"translate(12 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
      (kTop + kHeight - kBottom) / 2, escape(y_label));
  return svg;
}

std::string dot(double x, double y, std::string_view kind, std::string_view title) {
  return fmt::format(
      "<circle class=\"{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"><title>{}</title></circle>", kind,
      x, y, escape(title));
}

std::string missing(std::string_view why) {
  return fmt::format("<p class=\"none\">{}</p>", escape(why));
}

}  // namespace

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::string roofline_chart(const Report& report) {
  std::vector<double> intensities, rates;
  std::set<std::string> parts;
  std::vector<const ReportProblem*> shown;
  for (const ReportProblem& problem : report.problems) {
    if (!problem.is_known || problem.candidates.empty()) continue;
    shown.push_back(&problem);
    const double ridge = problem.facts.matrix_tflops * 1e3 / problem.facts.memory_gb_per_s;
    intensities.insert(intensities.end(), {problem.flops / problem.bytes, ridge / 4, ridge * 4});
    rates.insert(rates.end(), {problem.flops / problem.candidates.front().us / 1e6,
                               problem.facts.matrix_tflops});
  }
  if (shown.empty()) return missing("Neither spec nor device of these problems is known here.");
  const Axis x = axis_over(intensities, kLeft, kWidth - kRight);
  const Axis y = axis_over(rates, kHeight - kBottom, kTop);
  std::string svg = open_chart("roofline") + frame(x, y, "FLOP a byte", "TFLOP/s");
  for (const ReportProblem* problem : shown) {
    const DeviceFacts& facts = problem->facts;
    if (!parts.insert(facts.name).second) continue;
    const double ridge = facts.matrix_tflops * 1e3 / facts.memory_gb_per_s;
    // The memory roof rises to the ridge; it may start below the picture.
    const double start = std::max(x.low, y.low * 1e3 / facts.memory_gb_per_s);
    svg += fmt::format(
        "<polyline class=\"roof\" points=\"{:.1f},{:.1f} {:.1f},{:.1f} {:.1f},{:.1f}\"><title>{}: "
        "{} "
        "TFLOP/s, {} GB/s</title></polyline>",
        x.at(start), y.at(start * facts.memory_gb_per_s / 1e3), x.at(ridge),
        y.at(facts.matrix_tflops), x.at(x.high), y.at(facts.matrix_tflops), escape(facts.name),
        short_number(facts.matrix_tflops), short_number(facts.memory_gb_per_s));
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>",
                       x.at(x.high) - 4, y.at(facts.matrix_tflops) + 12, escape(facts.name));
  }
  for (const ReportProblem* problem : shown) {
    const double rate = problem->flops / problem->candidates.front().us / 1e6;
    svg += dot(x.at(problem->flops / problem->bytes), y.at(rate), "best",
               fmt::format("{} {} on {}: {} TFLOP/s", problem->name, to_string(problem->shape),
                           problem->facts.name, short_number(rate)));
  }
  return svg + "</svg>";
}

std::string scatter_chart(const ReportProblem& problem) {
  if (!problem.is_known)
    return missing("Spec or device is not known here, so there is no prediction.");
  std::vector<double> predicted, measured;
  for (const ReportCandidate& candidate : problem.candidates) {
    predicted.push_back(candidate.predicted_us);
    measured.push_back(candidate.us);
  }
  const Axis x = axis_over(predicted, kLeft, kWidth - kRight);
  const Axis y = axis_over(measured, kHeight - kBottom, kTop);
  std::string svg = open_chart("candidates") + frame(x, y, "predicted, us", "measured, us");
  // Slowest first, so that the best lies on top.
  for (auto candidate = problem.candidates.rbegin(); candidate != problem.candidates.rend();
       ++candidate) {
    const bool best = &*candidate == &problem.candidates.front();
    svg += dot(x.at(candidate->predicted_us), y.at(candidate->us),
               best ? "best" : std::string(to_string(candidate->plan.family())),
               fmt::format("{}: {:.1f} us, {:.1f} predicted", candidate->text, candidate->us,
                           candidate->predicted_us));
  }
  return svg + "</svg>";
}

std::string tile_heat_map(const ReportProblem& problem) {
  std::map<std::pair<int, int>, const ReportCandidate*>
      best;  // (q, kv); candidates come fastest first
  std::set<int> qs, kvs;
  for (const ReportCandidate& candidate : problem.candidates) {
    best.try_emplace({candidate.tile_q, candidate.tile_kv}, &candidate);
    qs.insert(candidate.tile_q);
    kvs.insert(candidate.tile_kv);
  }
  if (best.empty()) return missing("Nothing was measured.");
  const double cell_width = (kWidth - kLeft - kRight) / static_cast<double>(kvs.size());
  const double cell_height = (kHeight - kTop - kBottom) / static_cast<double>(qs.size());
  const double fastest = problem.candidates.front().us;
  std::string svg = open_chart("tile sizes");
  int row = 0;
  for (const int q : qs) {
    const double y = kTop + row++ * cell_height;
    svg += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>", kLeft - 5,
                       y + cell_height / 2 + 3, q);
    int column = 0;
    for (const int kv : kvs) {
      const double x = kLeft + column++ * cell_width;
      const auto at = best.find({q, kv});
      if (at == best.end()) continue;
      // Half as fast or slower is as pale as it gets.
      const double share = std::clamp(2 * fastest / at->second->us - 1, 0.08, 1.0);
      svg += fmt::format(
          "<rect class=\"heat\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" "
          "fill-opacity=\"{:.2f}\"><title>{}: {:.1f} us</title></rect>",
          x, y, cell_width - 2, cell_height - 2, share, escape(at->second->text), at->second->us);
      svg += fmt::format(
          "<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{}</text>",
          share > 0.6 ? "on-strong" : "on-pale", x + cell_width / 2 - 1, y + cell_height / 2 + 3,
          short_number(at->second->us));
    }
  }
  int column = 0;
  for (const int kv : kvs) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                       kLeft + (column++ + 0.5) * cell_width, kHeight - kBottom + 14, kv);
  }
  svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">keys of a tile</text>",
                     (kLeft + kWidth - kRight) / 2, kHeight - 8);
  svg += fmt::format(
      "<text transform=\"translate(12 {}) rotate(-90)\" text-anchor=\"middle\">queries of a "
      "tile</text>",
      (kTop + kHeight - kBottom) / 2);
  return svg + "</svg>";
}

}  // namespace attune::cli
