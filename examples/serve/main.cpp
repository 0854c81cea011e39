// Serves requests that arrive one after the other with a small transformer: prompts in chunks,
// single tokens and trees of drafted tokens in one launch of attention a layer, on a paged cache.
//
//   serve                     24 requests, then a summary; exit code 1 when a token is wrong
//   serve --verbose           the same with a line for each step
//   serve --help              all options and exit codes
#include <algorithm>
#include <csignal>
#include <cstdio>

#include "model.hpp"
#include "options.hpp"
#include "oracle.hpp"
#include "scheduler.hpp"

namespace serve {
namespace {

volatile std::sig_atomic_t is_interrupted = 0;

void interrupt(int) {
  is_interrupted = 1;
  std::signal(SIGINT, SIG_DFL);  // who asks twice does not want to wait
}

struct Totals {
  std::size_t steps = 0, launches = 0, requests = 0, prompt = 0, generated = 0, wrong = 0;
};

// "r3 +16 prefill", "r1 +1 decode", "r2 +7 tree, 3 accepted".
void print_step(std::size_t number, const Step& step, const std::vector<std::size_t>& lengths,
                const Scheduler& scheduler) {
  std::printf("step %4zu  %2zu rows  %3zu pages free  %zu waiting ", number, step.batch.rows(),
              scheduler.pages().free(), scheduler.waiting());
  for (std::size_t i = 0; i < step.parts.size(); ++i) {
    const Part& part = step.parts[i];
    const std::size_t generated = part.request->tokens.size() - lengths[i];
    const std::size_t drafted = part.draft.nodes.size();
    std::printf(" | r%zu +%zu", part.request->number, part.rows);
    if (drafted > 0) {
      std::printf(" tree, %zu accepted", generated - 1);
    } else {
      std::printf("%s", part.rows == 1 ? " decode" : " prefill");
    }
    if (part.request->is_done()) std::printf(", done");
  }
  std::printf("\n");
  std::fflush(stdout);
}

void check(const Scheduler& scheduler, Oracle& oracle, Totals& totals) {
  for (const Request* request : scheduler.finished()) {
    ++totals.requests;
    totals.prompt += request->prompt;
    totals.generated += request->wanted;
    const std::string wrong = oracle.check(*request);
    if (wrong.empty()) continue;
    ++totals.wrong;
    std::printf("request %zu: %s\n", request->number, wrong.c_str());
  }
}

void print_summary(const Totals& totals, const Scheduler& scheduler, const Oracle& oracle) {
  const Counters& counters = scheduler.counters();
  std::printf("served      %zu requests, %zu tokens of prompts, %zu generated\n", totals.requests,
              totals.prompt, totals.generated);
  std::printf("steps       %zu with %zu rows, %zu launches of attention\n", totals.steps,
              counters.rows, totals.launches);
  std::printf(
      "parts       %zu chunks of prompts, %zu decodes, %zu trees; %zu steps had all three\n",
      counters.prefills, counters.decodes, counters.trees, counters.mixed);
  std::printf("pages       %zu of %zu used at most, %zu preemptions\n",
              scheduler.pages().used_at_most(), scheduler.pages().count(), counters.preemptions);
  std::printf("speculation %zu of %zu drafted tokens accepted\n", counters.accepted,
              counters.drafted);
  std::printf("oracle      logits apart by %.1e at most, %.0e allowed; %zu requests differ (%s)\n",
              oracle.apart(), kTolerance, totals.wrong, totals.wrong == 0 ? "right" : "WRONG");
}

Exit run(const Options& options) {
  const ModelShape shape;
  const Weights weights = draw_weights(shape, options.seed);
  const CacheShape cache{options.pages, options.page_size, shape.layers, shape.kv_columns()};
  Scheduler scheduler(draw_requests(options.requests, shape.vocabulary, options.seed + 1),
                      shape.vocabulary, Limits(), cache);
  const std::unique_ptr<Dense> dense = make_dense(options.device);
  PagedAttention attention(dense->memory(), options.device, options.spec_file, shape, cache,
                           scheduler.capacity());
  Model model(*dense, attention, weights, cache, scheduler.capacity());
  Oracle oracle(weights);
  std::printf("device      %s\nplan        %s\ncache       %zu pages of %zu tokens\n",
              attention.device().c_str(), attention.plan().c_str(), cache.pages, cache.page_size);
  std::fflush(stdout);

  std::signal(SIGINT, interrupt);
  Totals totals;
  while (!scheduler.is_done() && is_interrupted == 0) {
    const Step step = scheduler.plan();
    ++totals.steps;
    if (step.parts.empty()) continue;
    std::vector<std::size_t> lengths;
    for (const Part& part : step.parts) lengths.push_back(part.request->tokens.size());
    model.move(scheduler.apply(step, model.run(step.batch)));
    totals.launches += shape.layers;
    if (options.is_verbose) print_step(totals.steps, step, lengths, scheduler);
    check(scheduler, oracle, totals);
  }
  print_summary(totals, scheduler, oracle);
  if (is_interrupted != 0) {
    std::fprintf(stderr, "interrupted after %zu steps\n", totals.steps);
    return Exit::kFailed;
  }
  return totals.wrong == 0 ? Exit::kDone : Exit::kFailed;
}

}  // namespace
}  // namespace serve

int main(int argc, char** argv) {
  try {
    const serve::Options options = serve::parse_options(argc, argv);
    if (options.shows_help) {
      std::printf("%s", serve::help().c_str());
      return 0;
    }
    return static_cast<int>(serve::run(options));
  } catch (const serve::Error& error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "serve: %s\n", error.what());
    return 1;
  }
}
