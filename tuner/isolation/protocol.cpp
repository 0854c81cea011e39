#include "tuner/isolation/protocol.hpp"

#include <algorithm>
#include <array>

#include "runtime/support/json.hpp"

namespace attune {
namespace {

constexpr std::array<const char*, 7> kOperations{"open", "prepare", "compile",   "verify",
                                                 "time", "release", "conditions"};

Error protocol_error(const std::string& line) {
  return {.id = "worker-protocol",
          .message = "not a message of a worker",
          .detail = line.substr(0, 500)};
}

}  // namespace

std::string encode(const WorkerRequest& request) {
  Json json{{"op", kOperations[static_cast<std::size_t>(request.operation)]}};
  if (request.operation == WorkerRequest::Operation::kOpen) {
    const WorkerProblem& p = request.problem;
    json.set("spec", p.spec_yaml);
    json.set("file", p.spec_file);
    json.set("shape", to_string(p.shape));
    json.set("pass", to_string(p.pass));
    json.set("device", p.device);
    json.set("compilers", p.compilers);
    json.set("cache", p.cache);
    json.set("seed", p.seed);
    json.set("tensors", p.tensors);
    json.set("samples", p.samples);
    json.set("lengths", p.sequences.lengths);
    json.set("page_size", p.sequences.page_size);
    json.set("shared_prefix", p.sequences.shared_prefix);
    json.set("launch", p.launch);
  } else {
    json.set("plan", request.plan);
    json.set("compiler", request.compiler);
  }
  return json.dump();
}

std::string encode(const Result<WorkerReply>& reply) {
  if (!reply.ok()) {
    const Error& error = reply.error();
    return Json{{"error",
                 {{"kind", static_cast<int>(error.kind)},
                  {"id", error.id},
                  {"message", error.message},
                  {"hint", error.hint},
                  {"detail", error.detail}}}}
        .dump();
  }
  return Json{{"build", reply->facts.build_digest},
              {"compiler", reply->facts.compiler},
              {"threads", reply->facts.threads},
              {"registers", reply->facts.registers},
              {"shared_bytes", reply->facts.shared_bytes},
              {"compile_seconds", reply->facts.compile_seconds},
              {"time_us", reply->time_us},
              {"conditions", reply->conditions}}
      .dump();
}

Result<WorkerRequest> decode_request(const std::string& line) {
  const Json json = Json::parse(line).value_or(Json());
  std::string operation;
  if (!json.read("op", operation)) return protocol_error(line);
  const auto at = std::ranges::find(kOperations, operation);
  if (at == kOperations.end()) return protocol_error(line);
  WorkerRequest request;
  request.operation = static_cast<WorkerRequest::Operation>(at - kOperations.begin());
  if (request.operation != WorkerRequest::Operation::kOpen) {
    if (!json.read("plan", request.plan) || !json.read("compiler", request.compiler)) {
      return protocol_error(line);
    }
    return request;
  }
  WorkerProblem& p = request.problem;
  std::string shape, pass;
  const bool whole =
      json.read("spec", p.spec_yaml) && json.read("file", p.spec_file) &&
      json.read("shape", shape) && json.read("pass", pass) && json.read("device", p.device) &&
      json.read("compilers", p.compilers) && json.read("cache", p.cache) &&
      json.read("seed", p.seed) && json.read("tensors", p.tensors) &&
      json.read("samples", p.samples) && json.read("lengths", p.sequences.lengths) &&
      json.read("page_size", p.sequences.page_size) &&
      json.read("shared_prefix", p.sequences.shared_prefix) && json.read("launch", p.launch);
  const auto known_pass = pass_from_string(pass);
  if (!whole || !known_pass) return protocol_error(line);
  p.pass = *known_pass;
  ATT_TRY(p.shape, parse_shape(shape));
  return request;
}

Result<WorkerReply> decode_reply(const std::string& line) {
  const Json json = Json::parse(line).value_or(Json());
  if (json.contains("error")) {
    const Json told = json.at("error");
    Error error;
    int kind = -1;
    const bool whole = told.read("kind", kind) && told.read("id", error.id) &&
                       told.read("message", error.message) && told.read("hint", error.hint) &&
                       told.read("detail", error.detail);
    if (!whole || kind < 0 || kind > static_cast<int>(ErrorKind::kUnavailable)) {
      return protocol_error(line);
    }
    error.kind = static_cast<ErrorKind>(kind);
    return error;
  }
  WorkerReply reply;
  CompiledFacts& facts = reply.facts;
  const bool whole =
      json.read("build", facts.build_digest) && json.read("compiler", facts.compiler) &&
      json.read("threads", facts.threads) && json.read("registers", facts.registers) &&
      json.read("shared_bytes", facts.shared_bytes) &&
      json.read("compile_seconds", facts.compile_seconds) && json.read("time_us", reply.time_us) &&
      json.read("conditions", reply.conditions);
  if (!whole) return protocol_error(line);
  return reply;
}

}  // namespace attune
