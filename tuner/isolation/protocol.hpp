// What the tuner and its workers say to each other: one JSON object a line. docs/tuning.md.
#pragma once

#include <string>
#include <vector>

#include "generator/spec/sequence_words.hpp"
#include "tuner/executor.hpp"

namespace attune {

// The problem a worker is to work on; every field is text or a number, so that it survives the
// trip.
struct WorkerProblem {
  std::string spec_yaml, spec_file;  // the file is for messages
  ProblemShape shape;
  Pass pass = Pass::kForward;
  std::string device;                  // as open_device() takes it; empty: compile only
  std::vector<std::string> compilers;  // names of kCompilers
  std::string cache;
  std::uint64_t seed = 0;
  std::vector<std::string> tensors = {};  // files, as give_tensors() takes them
  std::vector<std::string> samples = {};  // as describe() takes them
  SequenceWords sequences = {};
  std::string launch = {};  // of a host's data, as GivenLaunch::open() takes it
};

struct WorkerRequest {
  enum class Operation {
    kOpen,
    kPrepare,
    kCompile,
    kVerify,
    kTime,
    kRelease,
    kConditions
  } operation = Operation::kOpen;
  WorkerProblem problem;  // kOpen
  std::string plan;       // the others but kPrepare and kConditions
  int compiler = 0;       // index in WorkerProblem::compilers
};

// Which members mean something depends on the request.
struct WorkerReply {
  CompiledFacts facts;
  double time_us = 0;
  std::string conditions;
};

std::string encode(const WorkerRequest& request);
std::string encode(const Result<WorkerReply>& reply);
// "worker-protocol" on anything that encode() does not make.
Result<WorkerRequest> decode_request(const std::string& line);
// The reply, or the Error that it carries.
Result<WorkerReply> decode_reply(const std::string& line);

}  // namespace attune
