// The checking mode on a GPU: wrong offsets, lengths and tables are refused with it, and served
// within the caller's memory without it; what it reads is what the stream's work leaves; under
// capture it is an error and the capture goes on.
#include <attune/attune.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "runtime/device/cuda_api.hpp"
#include "tests/gpu/kernel_bank.hpp"

namespace attune::gpu_test {
namespace {

using testing::HasSubstr;
using Bf16 = std::uint16_t;
using Indices = std::vector<std::int32_t>;

// What the tests need of the driver beyond cuda_api.hpp.
template <typename Function>
Function* driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

constexpr Bf16 kOne = 0x3F80, kUnset = 0x7FC1;  // 1; a NaN
constexpr int kDim = 64, kHeads = 2, kPageSize = 16;
constexpr std::size_t kRow = std::size_t{kHeads} * kDim;
constexpr std::size_t kQueries = 24, kPages = 12, kKeys = kPages * kPageSize;
constexpr att_shape kPaged = {3, kHeads, kHeads, kQueries, 64};
constexpr att_shape kPacked = {3, kHeads, kHeads, kQueries, kKeys};

// A stream that does not wait for the default one.
class Stream {
 public:
  Stream() { EXPECT_EQ(driver<CUresult(CUstream*, unsigned)>("cuStreamCreate")(&stream_, 1), 0); }
  ~Stream() { driver<CUresult(CUstream)>("cuStreamDestroy_v2")(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }

  // `mode`: 0 is the strictest: any call that allocates, synchronises or loads ends the capture.
  void begin_capture(int mode = 0) {
    ASSERT_EQ(driver<CUresult(CUstream, int)>("cuStreamBeginCapture_v2")(stream_, mode), 0);
  }
  // Whether there is a graph of it.
  bool end_capture() {
    CUgraph graph = nullptr;
    const CUresult ended =
        driver<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream_, &graph);
    if (ended != 0 || graph == nullptr) return false;
    driver<CUresult(CUgraph)>("cuGraphDestroy")(graph);
    return true;
  }

 private:
  CUstream stream_ = nullptr;
};

struct Wrong {
  const char* what;  // the message has it
  std::function<void()> plant;
};

class CheckedTables : public testing::Test {
 protected:
  void SetUp() override {
    if (!KernelBank::instance().missing().empty()) GTEST_SKIP() << KernelBank::instance().missing();
    for (int check : {0, 1}) {
      att_runtime_options options = {sizeof options, "cuda:0", ""};
      options.check = check;
      ASSERT_EQ(att_runtime_create(&options, &runtimes_[check]), ATT_OK) << att_last_error();
    }
    q_ = filled(kQueries, kOne), k_ = filled(kKeys, kOne), v_ = filled(kKeys, kOne);
    o_ = filled(kQueries, kUnset), d_q_ = filled(kQueries, kUnset);
    d_k_ = filled(kKeys, kUnset), d_v_ = filled(kKeys, kUnset);
    lse_ = allocate(kQueries * kHeads * 4);
    be_good();
    cu_q_at_ = upload(cu_q_), cu_kv_at_ = upload(cu_kv_), used_kv_at_ = upload(used_kv_);
    table_at_ = upload(table_);
  }
  void TearDown() override {
    for (att_kernel* kernel : kernels_) att_kernel_destroy(kernel);
    for (att_append_kernel* kernel : appends_) att_append_kernel_destroy(kernel);
    for (att_spec* spec : specs_) att_spec_destroy(spec);
    for (void* buffer : buffers_) device().free(buffer);
    for (att_runtime* runtime : runtimes_) att_runtime_destroy(runtime);
  }

  static Device& device() { return KernelBank::instance().device(); }
  void* allocate(std::size_t bytes) {
    buffers_.push_back(*device().allocate(bytes));
    return buffers_.back();
  }
  void* filled(std::size_t rows, Bf16 value) {
    void* const buffer = allocate(rows * kRow * 2);
    refill(buffer, rows, value);
    return buffer;
  }
  void refill(void* buffer, std::size_t rows, Bf16 value) {
    const std::vector<Bf16> values(rows * kRow, value);
    EXPECT_TRUE(device().copy_to_device(buffer, values.data(), values.size() * 2).ok());
  }
  std::int32_t* upload(const Indices& values) {
    auto* const buffer = static_cast<std::int32_t*>(allocate(values.size() * 4));
    store(buffer, values);
    return buffer;
  }
  static void store(std::int32_t* at, const Indices& values) {
    EXPECT_TRUE(device().copy_to_device(at, values.data(), values.size() * 4).ok());
  }
  void store_all() {
    store(cu_q_at_, cu_q_), store(cu_kv_at_, cu_kv_);
    store(used_kv_at_, used_kv_), store(table_at_, table_);
  }
  std::vector<Bf16> rows_of(const void* buffer, std::size_t rows) {
    std::vector<Bf16> values(rows * kRow);
    const Status done = device().synchronize();
    EXPECT_TRUE(done.ok()) << render(done.error());
    EXPECT_TRUE(device().copy_to_host(values.data(), buffer, values.size() * 2).ok());
    return values;
  }
  bool is_unset(const void* buffer, std::size_t rows) {
    return rows_of(buffer, rows) == std::vector<Bf16>(rows * kRow, kUnset);
  }

  att_kernel* kernel(int check, const std::string& lines, const att_shape& shape,
                     int pass = ATT_PASS_FORWARD) {
    const std::string yaml = "attune: 1\nname: t\ndtype: bf16\nhead_dim: 64\n" + lines;
    att_spec* spec = nullptr;
    EXPECT_EQ(att_spec_from_yaml(yaml.c_str(), &spec), ATT_OK) << att_last_error();
    specs_.push_back(spec);
    att_kernel* made = nullptr;
    EXPECT_EQ(att_kernel_get_for_pass(runtimes_[check], spec, &shape, pass, &made), ATT_OK)
        << att_last_error();
    kernels_.push_back(made);
    return made;
  }
  att_forward_args paged_arguments(att_kernel* kernel) {
    att_forward_args args = {};
    args.struct_size = sizeof args;
    args.shape = kPaged;
    args.q = q_, args.k = k_, args.v = v_, args.o = o_;
    args.workspace = allocate(att_kernel_workspace_bytes(kernel, &kPaged) + 16);
    args.cu_q = cu_q_at_, args.used_kv = used_kv_at_, args.page_table = table_at_;
    args.pages_per_sequence = 4, args.page_size = kPageSize, args.pages = kPages;
    return args;
  }
  // Three sequences of 1, 0 and 20 queries on 40, 7 and 64 keys.
  void be_good() {
    cu_q_ = {0, 1, 1, 21}, cu_kv_ = {0, 40, 47, 111}, used_kv_ = {40, 7, 64};
    table_ = {4, 1, 9, -1, 99, -1, -1, -1, 0, 3, 11, 2};
  }
  std::vector<Wrong> wrong_pages() {
    return {{"entry 3 of sequence 2 in `page_table` is page 12, and the cache has 12 pages",
             [this] { table_[11] = 12; }},
            {"entry 2 of sequence 0 in `page_table` is page 2147483647",
             [this] { table_[2] = std::numeric_limits<std::int32_t>::max(); }},
            {"entry 2 of sequence 2 in `page_table` is page -2147483648",
             [this] { table_[10] = std::numeric_limits<std::int32_t>::min(); }},
            {"`used_kv` of sequence 2 is 65, not in 0 to 64", [this] { used_kv_[2] = 65; }},
            {"`used_kv` of sequence 1 is -1", [this] { used_kv_[1] = -1; }},
            {"`cu_q` descends: sequence 1", [this] { cu_q_[2] = 0; }},
            {"sequence 2 ends at 25, and shape.q_len is 24", [this] { cu_q_[3] = 25; }}};
  }

  att_runtime* runtimes_[2] = {};
  std::vector<att_spec*> specs_;
  std::vector<att_kernel*> kernels_;
  std::vector<att_append_kernel*> appends_;
  std::vector<void*> buffers_;
  Indices cu_q_, cu_kv_, used_kv_, table_;
  void *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr, *lse_ = nullptr;
  void *d_q_ = nullptr, *d_k_ = nullptr, *d_v_ = nullptr;
  std::int32_t *cu_q_at_ = nullptr, *cu_kv_at_ = nullptr, *used_kv_at_ = nullptr,
               *table_at_ = nullptr;
};

TEST_F(CheckedTables, ForwardOverPages) {
  const std::string lines = "layout: paged\nmask: causal\n";
  att_kernel* const plain = kernel(0, lines, kPaged);
  att_kernel* const checked = kernel(1, lines, kPaged);
  const att_forward_args args = paged_arguments(plain);
  ASSERT_EQ(att_forward(plain, &args, nullptr), ATT_OK) << att_last_error();
  const std::vector<Bf16> expected = rows_of(o_, kQueries);
  EXPECT_EQ(expected[0], kOne);
  refill(o_, kQueries, kUnset);
  ASSERT_EQ(att_forward(checked, &args, nullptr), ATT_OK) << att_last_error();
  EXPECT_EQ(rows_of(o_, kQueries), expected);
  for (const auto& [what, plant] : wrong_pages()) {
    plant();
    store_all();
    refill(o_, kQueries, kUnset);
    EXPECT_EQ(att_forward(checked, &args, nullptr), ATT_BAD_INPUT) << what;
    EXPECT_THAT(att_last_error(), HasSubstr(what));
    EXPECT_TRUE(is_unset(o_, kQueries)) << what << ": something was launched";
    EXPECT_EQ(att_forward(plain, &args, nullptr), ATT_OK) << what << ": " << att_last_error();
    const Status served = device().synchronize();
    ASSERT_TRUE(served.ok()) << what << ": " << render(served.error());
    be_good();
  }
  store_all();
  refill(o_, kQueries, kUnset);
  ASSERT_EQ(att_forward(checked, &args, nullptr), ATT_OK) << att_last_error();
  EXPECT_EQ(rows_of(o_, kQueries), expected);
}

TEST_F(CheckedTables, PackedSequencesForwardAndBackward) {
  const std::string lines = "layout: thd\nmask: causal\npasses: [forward, backward]\n";
  att_forward_args forward = {};
  forward.struct_size = sizeof forward;
  forward.shape = kPacked;
  forward.q = q_, forward.k = k_, forward.v = v_, forward.o = o_;
  forward.lse = static_cast<float*>(lse_);
  forward.cu_q = cu_q_at_, forward.cu_kv = cu_kv_at_;
  att_backward_args backward = {};
  backward.struct_size = sizeof backward;
  backward.shape = kPacked;
  backward.q = q_, backward.k = k_, backward.v = v_, backward.o = o_;
  backward.d_o = q_, backward.lse = forward.lse;
  backward.d_q = d_q_, backward.d_k = d_k_, backward.d_v = d_v_;
  backward.cu_q = cu_q_at_, backward.cu_kv = cu_kv_at_;
  att_kernel *first[2], *second[2];
  for (const int check : {0, 1}) {
    first[check] = kernel(check, lines, kPacked);
    second[check] = kernel(check, lines, kPacked, ATT_PASS_BACKWARD);
  }
  forward.workspace = allocate(att_kernel_workspace_bytes(first[0], &kPacked) + 16);
  backward.workspace = allocate(att_kernel_workspace_bytes(second[0], &kPacked) + 16);
  const auto run = [&](int check) {
    refill(d_q_, kQueries, kUnset), refill(d_k_, kKeys, kUnset), refill(d_v_, kKeys, kUnset);
    const att_status before = att_forward(first[check], &forward, nullptr);
    EXPECT_EQ(att_backward(second[check], &backward, nullptr), before) << att_last_error();
    return before;
  };
  ASSERT_EQ(run(0), ATT_OK) << att_last_error();
  const std::vector<Bf16> of_q = rows_of(d_q_, kQueries), of_v = rows_of(d_v_, kKeys);
  ASSERT_EQ(run(1), ATT_OK) << att_last_error();
  // Row by row of a sequence without sums that race: what was written, not to the bit.
  const std::vector<Bf16> again = rows_of(d_v_, kKeys);
  for (std::size_t i = 0; i < again.size(); ++i) {
    ASSERT_EQ(again[i] == kUnset, of_v[i] == kUnset) << i;
  }
  EXPECT_NE(of_q[0], kUnset);
  const std::vector<Wrong> wrong = {
      {"`cu_kv` descends: sequence 1 begins at 40 and ends at 39", [&] { cu_kv_[2] = 39; }},
      {"sequence 2 ends at 193, and shape.kv_len is 192", [&] { cu_kv_[3] = 193; }},
      {"`cu_q` begins with -7", [&] { cu_q_[0] = -7; }}};
  for (const auto& [what, plant] : wrong) {
    plant();
    store_all();
    EXPECT_EQ(run(1), ATT_BAD_INPUT) << what;
    EXPECT_THAT(att_last_error(), HasSubstr(what));
    EXPECT_TRUE(is_unset(d_q_, kQueries) && is_unset(d_k_, kKeys) && is_unset(d_v_, kKeys)) << what;
    EXPECT_EQ(run(0), ATT_OK) << what << ": " << att_last_error();
    const Status served = device().synchronize();
    ASSERT_TRUE(served.ok()) << what << ": " << render(served.error());
    be_good();
  }
}

TEST_F(CheckedTables, Append) {
  att_append_options options = {};
  options.struct_size = sizeof options;
  options.dtype = options.cache_dtype = ATT_BF16;
  options.head_dim_qk = options.head_dim_v = kDim;
  for (att_runtime* runtime : runtimes_) {
    appends_.push_back(nullptr);
    ASSERT_EQ(att_append_kernel_get(runtime, &options, &appends_.back()), ATT_OK)
        << att_last_error();
  }
  att_append_args args = {};
  args.struct_size = sizeof args;
  args.layout = ATT_PAGED;
  args.shape = kPaged;
  args.k = args.v = q_;
  args.k_cache = d_k_, args.v_cache = d_v_;
  args.cu_q = cu_q_at_, args.used_kv = used_kv_at_, args.page_table = table_at_;
  args.pages_per_sequence = 4, args.page_size = kPageSize, args.pages = kPages;
  for (const auto& [what, plant] : wrong_pages()) {
    plant();
    store_all();
    EXPECT_EQ(att_append(appends_[1], &args, nullptr), ATT_BAD_INPUT) << what;
    EXPECT_THAT(att_last_error(), HasSubstr(what));
    EXPECT_TRUE(is_unset(d_k_, kKeys) && is_unset(d_v_, kKeys)) << what;
    be_good();
  }
  store_all();
  ASSERT_EQ(att_append(appends_[1], &args, nullptr), ATT_OK) << att_last_error();
  // Key 39 of sequence 0 is row 7 of page 9.
  EXPECT_EQ(rows_of(d_k_, kKeys)[(9 * kPageSize + 7) * kRow], kOne);
}

// The table is the one that work of the stream brings, which is not done when the launch is called.
TEST_F(CheckedTables, WaitsForTheStreamsOwnWork) {
  att_kernel* const checked = kernel(1, "layout: paged\n", kPaged);
  const att_forward_args args = paged_arguments(checked);
  constexpr std::size_t kWork = std::size_t{1} << 28;
  void* const large = allocate(kWork);
  const Stream stream;
  const auto set =
      driver<CUresult(CUdeviceptr, unsigned, std::size_t, CUstream)>("cuMemsetD32Async");
  for (const auto& [page, status] : {std::pair{12u, ATT_BAD_INPUT}, {5u, ATT_OK}}) {
    for (int i = 0; i < 40; ++i) {
      ASSERT_EQ(set(device_address(large), 0, kWork / 4, stream), 0);
    }
    ASSERT_EQ(set(device_address(&table_at_[11]), page, 1, stream), 0);
    EXPECT_EQ(att_forward(checked, &args, stream), status) << att_last_error();
  }
  EXPECT_TRUE(device().synchronize().ok());
}

TEST_F(CheckedTables, UnderCaptureItIsAnErrorAndTheCaptureGoesOn) {
  att_kernel* const checked = kernel(1, "layout: paged\n", kPaged);
  att_kernel* const plain = kernel(0, "layout: paged\n", kPaged);
  const att_forward_args args = paged_arguments(plain);
  Stream captured, other;
  for (const int mode : {0, 1, 2}) {
    captured.begin_capture(mode);
    EXPECT_EQ(att_forward(checked, &args, captured), ATT_UNSUPPORTED);
    EXPECT_THAT(att_last_error(), HasSubstr("[check-in-capture]"));
    EXPECT_EQ(att_forward(plain, &args, captured), ATT_OK) << att_last_error();
    // Another stream's launches are checked meanwhile.
    EXPECT_EQ(att_forward(checked, &args, other), ATT_OK) << att_last_error();
    EXPECT_TRUE(captured.end_capture()) << "mode " << mode;
  }
  EXPECT_TRUE(device().synchronize().ok());
}

}  // namespace
}  // namespace attune::gpu_test
