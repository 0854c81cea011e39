// Trains a small decoder-only transformer on a text: attention by Attune's kernels, or by its
// definition, or by both to compare them.
//
//   train                      400 steps, a line every few
//   train --compare            the same with both, and what the curves differ by
//   train --check-gradients    the whole model's gradients against finite differences
//   train --help               all options and exit codes
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include "attune_attention.hpp"
#include "comparison.hpp"
#include "curve.hpp"
#include "dense.hpp"
#include "gradient_check.hpp"
#include "kernels.hpp"
#include "nvrtc.hpp"
#include "operation_check.hpp"
#include "options.hpp"
#include "shared.hpp"

namespace train {
namespace {

volatile std::sig_atomic_t is_interrupted = 0;

void interrupt(int) {
  is_interrupted = 1;
  std::signal(SIGINT, SIG_DFL);  // who asks twice does not want to wait
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Everything that a step of the task needs.
class Setup {
 public:
  Setup(const Options& options, const Corpus& corpus)
      : options_(options),
        shape_{.vocabulary = corpus.vocabulary(),
               .attention = {.batch = options.batch, .length = options.length}},
        dense_(make_dense(options.device, workers_, options.products)) {
    if (options.uses_reference) {
      reference_ = std::make_unique<ReferenceAttention<float>>(dense_->memory(), workers_,
                                                               shape_.attention, options.seed);
    } else {
      attune_ = std::make_unique<AttuneAttention>(*dense_, options.device, options.spec_file,
                                                  shape_.attention, options.seed);
    }
    Attention<float>& attention = attune_ ? static_cast<Attention<float>&>(*attune_) : *reference_;
    if (options.task == Options::Task::kCompare) {
      auto comparison = std::make_unique<Comparison>(*dense_, workers_, attention, attune_->unit(),
                                                     shape_, options.seed, options.steps);
      comparison_ = comparison.get();
      learner_ = std::move(comparison);
    } else {
      learner_ =
          std::make_unique<Training>(*dense_, attention, shape_, options.seed, options.steps);
    }
  }

  Learner& learner() { return *learner_; }
  const Comparison* comparison() const { return comparison_; }
  std::string device() const {
    return attune_ ? attune_->device() : dense_->device() + ", attention by its definition";
  }
  std::string dense() const { return dense_->device(); }
  std::string plans() const { return attune_ ? attune_->plans() : std::string(); }
  // What the picture says below its title.
  std::string subtitle() const {
    char text[256];
    std::snprintf(text, sizeof text,
                  "%zu layers, d %zu, %zu/%zu heads of %zu, %zu x %zu characters a step, seed %llu",
                  shape_.layers, shape_.width, shape_.attention.heads, shape_.attention.kv_heads,
                  shape_.attention.head_dim, options_.batch, options_.length,
                  static_cast<unsigned long long>(options_.seed));
    return text;
  }

 private:
  Options options_;
  ModelShape shape_;
  Workers workers_;
  std::unique_ptr<Dense<float>> dense_;
  std::unique_ptr<AttuneAttention> attune_;
  std::unique_ptr<ReferenceAttention<float>> reference_;
  std::unique_ptr<Learner> learner_;
  const Comparison* comparison_ = nullptr;
};

void print_step(int step, const Point& point, bool is_compared) {
  if (is_compared) {
    std::printf("step %4d  attune %.6f  reference %.6f  apart %.1e  allowed %.1e\n", step,
                point.loss, point.reference, std::abs(point.loss - point.reference), point.allowed);
  } else {
    std::printf("step %4d  loss %.4f\n", step, point.loss);
  }
  std::fflush(stdout);
}

void write_curve(const Options& options, const Setup& setup, const Curve& curve) {
  if (curve.points.empty()) return;
  if (!options.csv_file.empty()) write_csv(curve, options.csv_file);
  if (!options.svg_file.empty()) write_svg(curve, setup.subtitle(), options.svg_file);
}

bool report(const Comparison& comparison, const Curve& curve) {
  double apart = 0;
  for (const Point& point : curve.points) {
    apart = std::max(apart, std::abs(point.loss - point.reference));
  }
  std::printf("gradients of step 1 apart by %s\n", comparison.gradients().c_str());
  const std::vector<std::string>& wrong = comparison.wrong();
  for (std::size_t i = 0; i < std::min<std::size_t>(wrong.size(), 5); ++i) {
    std::printf("%s\n", wrong[i].c_str());
  }
  std::printf("losses of %zu steps apart by %.1e at most, %.1e are allowed at the last (%s)\n",
              curve.points.size(), apart, curve.points.back().allowed,
              comparison.is_right() ? "right" : "WRONG");
  return comparison.is_right();
}

// For GPUs that need not be here.
Exit check_kernels() {
  for (const char* target : {"sm_80", "sm_90"}) {
    std::printf("kernels for %s: %zu bytes\n", target, compile_cuda(kKernels, target).size());
  }
  return Exit::kDone;
}

// Before a training whose curve would be lost.
void check_writable(const std::string& path) {
  if (path.empty()) return;
  std::FILE* file = std::fopen(path.c_str(), "a");
  if (file == nullptr) throw Error(Exit::kBadInput, path + ": cannot be written");
  std::fclose(file);
}

Exit run(const Options& options) {
  check_writable(options.csv_file);
  check_writable(options.svg_file);
  if (options.task == Options::Task::kCheckKernels) return check_kernels();
  if (options.task == Options::Task::kCheckOperations) {
    Workers workers;
    const std::unique_ptr<Dense<float>> dense =
        make_dense(options.device, workers, options.products);
    return check_operations(*dense, workers) ? Exit::kDone : Exit::kFailed;
  }
  const Corpus corpus = Corpus::from_file(options.text_file);
  if (options.task == Options::Task::kCheckGradients) {
    return check_gradients(corpus, options.device, options.products, options.spec_file,
                           options.seed)
               ? Exit::kDone
               : Exit::kFailed;
  }
  double start = seconds_now();
  Setup setup(options, corpus);
  std::printf("text    %zu characters of %zu kinds in %zu documents\ndevice  %s\nmodel   %s\n",
              corpus.tokens(), corpus.vocabulary(), corpus.documents().size(),
              setup.device().c_str(), setup.dense().c_str());
  if (!setup.plans().empty()) std::printf("%s", setup.plans().c_str());
  std::printf("ready   after %.0f ms\n", 1e3 * (seconds_now() - start));

  std::signal(SIGINT, interrupt);
  Packer packer(corpus, options.batch, options.length, options.seed);
  Curve curve{.points = {},
              .is_compared = setup.comparison() != nullptr,
              .device = options.device,
              .others = options.beside};
  start = seconds_now();
  double second_step = start;
  const int every = std::max(1, options.steps / 20);
  for (int step = 1; step <= options.steps && is_interrupted == 0; ++step) {
    curve.points.push_back(setup.learner().step(packer.next()));
    if (step == 1) second_step = seconds_now();
    if (step == 1 || step % every == 0 || step == options.steps) {
      print_step(step, curve.points.back(), curve.is_compared);
    }
  }
  const double end = seconds_now();
  const std::size_t steps = curve.points.size();
  std::printf("time    %.1f s", end - start);
  if (steps > 1) {
    std::printf(
        ", %.0f characters/s from step 2 on",
        static_cast<double>((steps - 1) * options.batch * options.length) / (end - second_step));
  }
  std::printf("\n");
  write_curve(options, setup, curve);
  bool is_fine = true;
  if (setup.comparison() != nullptr && steps > 0) is_fine = report(*setup.comparison(), curve);
  if (is_interrupted != 0) {
    std::fprintf(stderr, "interrupted after %zu of %d steps\n", steps, options.steps);
    is_fine = false;
  }
  return is_fine ? Exit::kDone : Exit::kFailed;
}

}  // namespace
}  // namespace train

int main(int argc, char** argv) {
  try {
    const train::Options options = train::parse_options(argc, argv);
    if (options.task == train::Options::Task::kHelp) {
      std::printf("%s", train::help().c_str());
      return 0;
    }
    return static_cast<int>(train::run(options));
  } catch (const train::Error& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return static_cast<int>(error.exit());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return static_cast<int>(train::Exit::kFailed);
  }
}
