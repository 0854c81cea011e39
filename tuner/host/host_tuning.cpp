#include "tuner/host/host_tuning.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "generator/spec/shape.hpp"
#include "tuner/host/checked_executor.hpp"
#include "tuner/host/device_name.hpp"
#include "tuner/isolation/isolated_executor.hpp"
#include "tuner/measure/local_executor.hpp"
#include "tuner/run_search.hpp"

namespace attune {
namespace {

// With a budget the search is asked for few candidates first, then for more: what it has measured
// when the time is over is then a comparison that was finished.
constexpr int kSteps[] = {4, 12};

std::vector<int> steps(const HostTuningRequest& request) {
  std::vector<int> wanted;
  for (const int step : kSteps) {
    const bool is_less = request.max_candidates == 0 || step < request.max_candidates;
    if (request.budget_seconds > 0 && is_less) wanted.push_back(step);
  }
  wanted.push_back(request.max_candidates);
  return wanted;
}

std::vector<Compiler*> compilers_of(Workshop& workshop) {
  std::vector<Compiler*> found;
  const Target target = workshop.device().facts().target;
  for (const CompilerName& known : kCompilers) {
    const auto compiler = workshop.compiler(target, std::string(known.family));
    if (compiler.ok()) found.push_back(*compiler);
  }
  return found;
}

void add_given_lengths(const AttentionSpec& spec, const GivenLaunch& launch, MaskData& data) {
  const ProblemShape& shape = launch.facts().shape;
  const auto page_size = static_cast<int>(launch.facts().pages.size);
  const HostSequences sequences = host_sequences(launch);
  std::vector<std::int32_t> queries, keys;
  for (int b = 0; b < shape.batch; ++b) {
    // copy_launch() has refused what is out of range.
    queries.push_back(static_cast<std::int32_t>(sequences.q_len(b)));
    keys.push_back(static_cast<std::int32_t>(sequences.kv_len(b)));
  }
  add_lengths(given_lengths_label(queries, keys, page_size),
              length_class(keys, key_rows(spec, shape), page_size), data);
}

}  // namespace

std::string user_file(const Overlay& cache) {
  for (const LayerStatus& layer : cache.layers()) {
    if (!layer.read_only) return layer.path;
  }
  return {};
}

MaskData data_of(const AttentionSpec& spec, const GivenLaunch& launch) {
  AttentionSpec known = spec;
  give_tensors(launch, known);
  auto& scalars = known.environment.scalars;
  for (std::size_t slot = 0; slot < scalars.size(); ++slot) {
    if (scalars[slot].is_constant) continue;
    const att::ScalarValue given = launch.facts().scalars[slot];
    scalars[slot].is_constant = true;
    scalars[slot].value =
        scalars[slot].type == expr::Type::kFloat32 ? double{given.as_float} : double(given.as_int);
  }
  MaskData data = tensor_data(known, launch.facts().shape);
  if (is_packed(spec)) add_given_lengths(spec, launch, data);
  return data;
}

HostTuning::HostTuning(Dispatcher& dispatcher, HostTuningRequest request)
    : dispatcher_(dispatcher),
      request_(std::move(request)),
      spec_(*request_.spec),
      data_(data_of(spec_, *request_.launch)) {
  give_tensors(*request_.launch, spec_);
  result_.data = data_;
}

void HostTuning::start() {
  const std::lock_guard lock(thread_mutex_);
  thread_ = std::thread([this] {
    const auto captures = dispatcher_.workshop().device().spare_captures();
    run();
  });
}

void HostTuning::run() noexcept {
  Result<HostTuningState> state = HostTuningState::kFailed;
  try {
    state = search();
    if (state.ok() && !ending_) take_over();
  } catch (const std::exception& exception) {
    state = Error{.id = "tune-failed", .message = exception.what()};  // memory
  }
  const std::lock_guard lock(mutex_);
  result_.state = state.ok() ? *state : HostTuningState::kFailed;
  result_.seconds = seconds();
  if (!state.ok()) status_ = state.error();
  is_over_ = true;
  over_.notify_all();
}

Result<HostTuningState> HostTuning::search() {
  Workshop& workshop = dispatcher_.workshop();
  const Target target = workshop.device().facts().target;
  const std::vector<Compiler*> compilers = compilers_of(workshop);
  if (compilers.empty()) return workshop.compiler(target).error();
  std::vector<std::string> names;
  for (const Compiler* compiler : compilers) names.push_back(compiler_name(*compiler));
  ATT_TRY(const std::string device, device_name(workshop.device()));
  const std::string file = user_file(workshop.cache());
  ATT_TRY(const std::unique_ptr<Store> store, open_writable_store(file));
  const WorkerProblem problem{.spec_yaml = request_.yaml,
                              .shape = request_.launch->facts().shape,
                              .pass = request_.pass,
                              .device = device,
                              .compilers = std::move(names),
                              .cache = file,
                              .seed = fresh_seed(),
                              .samples = described_samples(spec_),
                              .sequences = sequence_words(spec_),
                              .launch = request_.launch->publish()};
  return search_in_steps(problem, compilers, *store);
}

Result<HostTuningState> HostTuning::search_in_steps(const WorkerProblem& problem,
                                                    std::span<Compiler* const> compilers,
                                                    Store& store) {
  Workshop& workshop = dispatcher_.workshop();
  const ProblemShape& shape = problem.shape;
  CheckedExecutor executor(request_.worker);
  executor.open(
      problem,
      [&](const Candidate& candidate) {
        return candidate_build_digest(spec_, candidate.plan,
                                      *compilers[static_cast<std::size_t>(candidate.compiler)]);
      },
      [&](const Candidate& candidate) {
        return cost_us(spec_, candidate.plan, shape, workshop.device().facts());
      });
  // What launches have now takes part, with what is told of their data and without: so nothing
  // slower takes its place, and a choice among several kinds of data knows it on this kind too.
  ATT_TRY(const PlanChoice told, workshop.choose(spec_, request_.id, request_.pass, shape));
  ATT_TRY(const PlanChoice untold,
          workshop.choose(*request_.spec, request_.id, request_.pass, shape));
  TuneOptions options{.pass = request_.pass,
                      .compile_threads = request_.compile_threads,
                      .contenders = {told.plan},
                      .data = data_};
  if (untold.plan != told.plan) options.contenders.push_back(untold.plan);
  HostTuningState state = HostTuningState::kStopped;
  int measured = 0;
  std::optional<int> from_cache;
  for (const int step : steps(request_)) {
    options.max_candidates = step;
    const auto found = run_search(spec_, shape, workshop.device(), store, executor,
                                  static_cast<int>(compilers.size()), options,
                                  [&](const TuneProgress& progress) { return note(progress); });
    if (!found.ok()) {
      // Stopped before anything was measured, or while another tuner had the device.
      if (found.error().id == "tune-stopped" || found.error().id == "device-busy") break;
      return found.error();
    }
    if (found->not_stored) return *found->not_stored;
    measured += found->measured;
    if (!from_cache) from_cache = found->from_cache;
    const std::lock_guard lock(mutex_);
    result_.measured = measured;
    result_.rejected = found->rejected;
    result_.from_cache = *from_cache;
    result_.best_us = found->median_us;
    result_.before_us = measured_us(store, shape, to_string(untold.plan));
    result_.plan = kept(to_string(found->plan));
    result_.compiler = kept(found->compiler);
    if (found->stopped) break;
    if (step == request_.max_candidates || found->candidates < step) {
      state = HostTuningState::kDone;
      break;
    }
  }
  return state;
}

// Of the plan on this data, by the most samples; 0: it was not measured.
double HostTuning::measured_us(const Store& store, const ProblemShape& shape,
                               const std::string& plan) const {
  const auto measurements =
      store.measurements({.spec_hash = spec_hash(spec_),
                          .device = dispatcher_.workshop().device().identity(),
                          .shape = shape,
                          .protocol = std::string(kMeasurementProtocol),
                          .pass = request_.pass,
                          .spec_text = canonical_text(spec_),
                          .data = data_});
  if (!measurements.ok()) return 0;
  const Measurement* best = nullptr;
  for (const Measurement& one : *measurements) {
    if (one.plan == plan && (best == nullptr || one.samples > best->samples)) best = &one;
  }
  return best == nullptr ? 0 : best->median_us;
}

// Kernels of the runtime learn what was found. What fails here is what the next launch would fail
// with, and is told there.
void HostTuning::take_over() {
  (void)dispatcher_.refresh();
  const auto entry =
      dispatcher_.get(request_.spec, request_.id, request_.launch->facts().shape, request_.pass);
  if (!entry.ok()) return;
  if (data_.is_known()) (void)dispatcher_.tell_data(**entry, data_);
  (*entry)->release();
}

bool HostTuning::note(const TuneProgress& progress) {
  {
    const std::lock_guard lock(mutex_);
    if (progress.best_us > 0) {
      result_.best_us = progress.best_us;
      result_.plan = kept(progress.best_plan);
      result_.compiler = kept(progress.best_compiler);
    }
    result_.seconds = seconds();
  }
  if (progress.state == TuneState::kDone) return true;
  if (request_.budget_seconds > 0 && seconds() >= request_.budget_seconds) return false;
  if (request_.progress && !request_.progress({.done = progress.done,
                                               .total = progress.total,
                                               .seconds = seconds(),
                                               .best_us = progress.best_us,
                                               .best_plan = progress.best_plan})) {
    cancel();
  }
  return !cancelled_;
}

const char* HostTuning::kept(const std::string& text) { return texts_.insert(text).first->c_str(); }

double HostTuning::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - request_.began).count();
}

Status HostTuning::wait() const {
  std::unique_lock lock(mutex_);
  over_.wait(lock, [this] { return is_over_; });
  return status_;
}

HostTuningResult HostTuning::result() const {
  const std::lock_guard lock(mutex_);
  return result_;
}

bool HostTuning::is_over() const {
  const std::lock_guard lock(mutex_);
  return is_over_;
}

void HostTuning::end() noexcept {
  ending_ = true;
  cancel();
  const std::lock_guard lock(thread_mutex_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace attune
