#include "cli/report_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/output.hpp"
#include "cli/report_charts.hpp"
#include "runtime/support/json.hpp"

namespace attune::cli {
namespace {

constexpr const char* kStyle = R"(
:root { --ink: #1c2430; --soft: #66707e; --line: #d9dee5; --paper: #fff; --card: #f6f8fa; --accent: #0b66c3; --best: #d1490c; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e9f0; --soft: #98a3b3; --line: #313a46; --paper: #12161c; --card: #1a2028; --accent: #5aa7f0; --best: #ff8a4c; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto; max-width: 1080px; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.soft, .none { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem .7rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td.n, th.n { text-align: right; }
code { font: 13px ui-monospace, monospace; }
details { background: var(--card); border-radius: 6px; padding: .6rem 1rem; margin: .6rem 0; }
summary { cursor: pointer; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; } .charts figure { margin: .6rem 0; flex: 1 1 400px; max-width: 480px; }
figcaption { color: var(--soft); }
.chart { width: 100%; height: auto; font: 11px system-ui, sans-serif; }
.chart text { fill: var(--soft); } .chart .grid { stroke: var(--line); }
.chart circle { fill: var(--accent); fill-opacity: .55; } .chart circle.best { fill: var(--best); fill-opacity: 1; }
.chart circle.sm80, .chart circle.cpu { fill: var(--soft); }
.chart .roof { fill: none; stroke: var(--accent); stroke-width: 2; }
.chart .heat { fill: var(--accent); } .chart text.on-pale { fill: var(--ink); } .chart text.on-strong { fill: var(--paper); }
.plan, .whole { white-space: nowrap; } a { color: var(--accent); }
)";

std::string cell(std::string_view text) { return fmt::format("<td>{}</td>", escape(text)); }
std::string number(std::string_view text) {
  return fmt::format("<td class=\"n\">{}</td>", escape(text));
}

// "NVIDIA H200" of "NVIDIA H200 / 132 SMs / ...": what is told apart in a table.
std::string_view device_name(std::string_view identity) {
  return identity.substr(0, identity.find(" / "));
}

// "2026-03-04" of "2026-03-04T05:06:07Z".
std::string_view day(std::string_view moment) { return moment.substr(0, moment.find('T')); }

std::string share(double value) { return value < 0 ? "" : fmt::format("{:.1f} %", 100 * value); }

double tflops(const ReportProblem& problem) {
  return problem.flops / problem.candidates.front().us / 1e6;
}

std::string overview(const Report& report) {
  std::string html =
      "<div class=\"wide\"><table><tr><th>spec<th>batch x heads x length<th>device<th class=n>best "
      "us<th "
      "class=n>TFLOP/s<th "
      "class=n>of the roofline"
      "<th class=n>measured<th class=n>rejected<th class=n>regret of the first guess<th>best "
      "plan<th>compiler</tr>";
  int index = 0;
  for (const ReportProblem& problem : report.problems) {
    html += fmt::format("<tr><td><a href=\"#p{}\">{}</a></td>", index++, escape(problem.name));
    html += fmt::format("<td class=\"whole\">{}</td>", short_shape(problem.shape));
    html += fmt::format("<td class=\"whole\">{}</td>", escape(device_name(problem.device)));
    if (problem.candidates.empty()) {
      html += "<td class=n>-<td><td>";
    } else {
      const ReportCandidate& best = problem.candidates.front();
      html += number(fmt::format("{:.1f}", best.us));
      html += number(problem.is_known ? fmt::format("{:.3g}", tflops(problem)) : "");
      html += number(problem.is_known ? share(problem.roofline_us / best.us) : "");
    }
    html += number(fmt::to_string(problem.candidates.size())) +
            number(fmt::to_string(problem.rejections.size()));
    html += number(share(problem.regret()));
    const bool any = !problem.candidates.empty();
    html += fmt::format("<td class=\"plan\"><code>{}</code></td>",
                        any ? escape(problem.candidates.front().text) : "");
    html += cell(any ? problem.candidates.front().compiler : "") + "</tr>";
  }
  return html + "</table></div>";
}

// "sm_mhz 1755, temperature_c 46": whatever the device told.
std::string conditions(const std::string& json) {
  const auto told = Json::parse(json).value_or(Json()).members();
  if (told.empty()) return "not told by the device";
  std::string text;
  for (const auto& [name, value] : told) {
    if (!text.empty()) text += ", ";
    text += name + " " + value.text().value_or(value.dump());
  }
  return text;
}

std::string rejections(const ReportProblem& problem) {
  if (problem.rejections.empty()) return "<p class=\"soft\">No candidate was rejected.</p>";
  std::map<std::string, std::vector<const ReportRejection*>> by_reason;
  for (const ReportRejection& one : problem.rejections) by_reason[one.reason].push_back(&one);
  std::string html;
  for (const auto& [reason, found] : by_reason) {
    html += fmt::format("<p>{} rejected: {}</p><div class=\"wide\"><table>", found.size(),
                        escape(reason));
    for (const ReportRejection* one : found) {
      const std::string detail = one->detail.substr(0, one->detail.find('\n'));
      html += fmt::format("<tr><td><code>{}</code></td><td class=\"soft\">{}</td></tr>",
                          escape(one->plan), escape(detail.substr(0, 300)));
    }
    html += "</table></div>";
  }
  return html;
}

std::string candidates(const ReportProblem& problem) {
  std::string html =
      "<div class=\"wide\"><table><tr><th class=n>us<th class=n>spread<th class=n>samples<th "
      "class=n>registers"
      "<th class=n>shared bytes<th class=n>predicted us<th>plan<th>compiler</tr>";
  for (const ReportCandidate& one : problem.candidates) {
    html += "<tr>" + number(fmt::format("{:.1f}", one.us)) +
            number(fmt::format("{:.1f}", one.spread_us)) + number(fmt::to_string(one.samples)) +
            number(fmt::to_string(one.registers)) + number(fmt::to_string(one.shared_bytes)) +
            number(one.predicted_us > 0 ? fmt::format("{:.1f}", one.predicted_us) : "") +
            fmt::format("<td class=\"plan\"><code>{}</code></td>", escape(one.text)) +
            cell(one.compiler) + "</tr>";
  }
  return html + "</table></div>";
}

std::string details(const ReportProblem& problem, int index) {
  std::string html = fmt::format(
      "<details id=\"p{}\"{}><summary><b>{}</b> {} <span class=\"soft\">{}</span></summary>", index,
      index == 0 ? " open" : "", escape(problem.name), to_string(problem.shape),
      escape(problem.device));
  html += fmt::format("<p class=\"soft\">Measured {} to {}, UTC. With the best: {}.</p>",
                      escape(problem.first.substr(0, 19)), escape(problem.last.substr(0, 19)),
                      escape(conditions(problem.conditions)));
  html += "<div class=\"charts\"><figure>" + scatter_chart(problem) +
          "<figcaption>Candidates: what the cost model expected, what was "
          "measured</figcaption></figure><figure>" +
          tile_heat_map(problem) +
          "<figcaption>Best time of every tile size, us</figcaption></figure></div>";
  html += rejections(problem);
  html += fmt::format("<details><summary>{} candidates</summary>{}</details></details>",
                      problem.candidates.size(), candidates(problem));
  return html;
}

}  // namespace

std::string report_page(const Report& report) {
  std::set<std::string> devices;
  std::size_t measured = 0, rejected = 0;
  double regret = 0;
  int guesses = 0;
  std::string first, last;  // moments of measurements
  for (const ReportProblem& problem : report.problems) {
    devices.insert(problem.device);
    measured += problem.candidates.size();
    rejected += problem.rejections.size();
    if (!problem.first.empty() && (first.empty() || problem.first < first)) first = problem.first;
    last = std::max(last, problem.last);
    if (problem.regret() >= 0) {
      regret += problem.regret();
      ++guesses;
    }
  }
  std::string html =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">"
      "<title>Attune: tuning report</title><style>" +
      std::string(kStyle) + "</style></head><body><h1>Tuning report</h1>";
  html += fmt::format("<p>{}, {} measured, {} rejected; from <code>{}</code>.",
                      counted(report.problems.size(), "problem"), counted(measured, "candidate"),
                      rejected, escape(report.source));
  if (guesses > 0) {
    html += fmt::format(" Taking the cost model's first guess would cost {} on average.",
                        share(regret / guesses));
  }
  if (!first.empty())
    html += fmt::format(" Measured from {} to {}.", escape(day(first)), escape(day(last)));
  html += fmt::format("</p><p class=\"soft\">Written {}.</p><ul>", escape(report.written_at));
  for (const std::string& device : devices) html += fmt::format("<li>{}</li>", escape(device));
  html += "</ul><h2>Problems</h2>" + overview(report);
  html += "<h2>Roofline</h2><div class=\"charts\"><figure>" + roofline_chart(report) +
          "<figcaption>The best plan of every problem, and its device's "
          "peaks</figcaption></figure></div>";
  html += "<h2>Candidates</h2>";
  int index = 0;
  for (const ReportProblem& problem : report.problems) html += details(problem, index++);
  return html + "</body></html>\n";
}

}  // namespace attune::cli
