// Streams and graphs: what tests need of the driver beyond cuda_api.hpp.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <functional>

#include "runtime/device/cuda_api.hpp"

namespace attune::gpu_test {

template <typename Function>
Function* driver(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

// Of this thread's current context. It waits for no other stream, not for the default one either.
class Stream {
 public:
  Stream() {
    constexpr unsigned kNonBlocking = 1;
    EXPECT_EQ(driver<CUresult(CUstream*, unsigned)>("cuStreamCreate")(&stream_, kNonBlocking), 0);
  }
  ~Stream() { driver<CUresult(CUstream)>("cuStreamDestroy_v2")(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

// What `enqueue` puts on the stream, captured in the strictest mode: any call that allocates,
// synchronises or loads ends the capture.
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void(CUstream)>& enqueue) {
    EXPECT_EQ(driver<CUresult(CUstream, int)>("cuStreamBeginCapture_v2")(stream.get(), 0), 0);
    enqueue(stream.get());
    EXPECT_EQ(driver<CUresult(CUstream, CUgraph*)>("cuStreamEndCapture")(stream.get(), &graph_), 0);
    EXPECT_EQ(driver<CUresult(CUgraphExec*, CUgraph, unsigned long long)>(
                  "cuGraphInstantiateWithFlags")(&executable_, graph_, 0),
              0);
  }
  ~Graph() {
    driver<CUresult(CUgraphExec)>("cuGraphExecDestroy")(executable_);
    driver<CUresult(CUgraph)>("cuGraphDestroy")(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(const Stream& stream) const {
    EXPECT_EQ(driver<CUresult(CUgraphExec, CUstream)>("cuGraphLaunch")(executable_, stream.get()),
              0);
  }

 private:
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

}  // namespace attune::gpu_test
