#include "tuner/isolation/protocol.hpp"

#include <array>
#include <nlohmann/json.hpp>

namespace attune {
namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 7> kOperations{"open", "prepare", "compile",   "verify",
                                                 "time", "release", "conditions"};

Error protocol_error(const std::string& line) {
  return {.id = "worker-protocol",
          .message = "not a message of a worker",
          .detail = line.substr(0, 500)};
}

// Compilers' logs and names of files may hold any bytes.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string encode(const WorkerRequest& request) {
  Json json{{"op", kOperations[static_cast<std::size_t>(request.operation)]}};
  if (request.operation == WorkerRequest::Operation::kOpen) {
    const WorkerProblem& p = request.problem;
    json["spec"] = p.spec_yaml;
    json["file"] = p.spec_file;
    json["shape"] = to_string(p.shape);
    json["pass"] = to_string(p.pass);
    json["device"] = p.device;
    json["compilers"] = p.compilers;
    json["cache"] = p.cache;
    json["seed"] = p.seed;
  } else {
    json["plan"] = request.plan;
    json["compiler"] = request.compiler;
  }
  return dump(json);
}

std::string encode(const Result<WorkerReply>& reply) {
  if (!reply.ok()) {
    const Error& error = reply.error();
    return dump({{"error",
                  {{"kind", static_cast<int>(error.kind)},
                   {"id", error.id},
                   {"message", error.message},
                   {"hint", error.hint},
                   {"detail", error.detail}}}});
  }
  return dump({{"build", reply->facts.build_digest},
               {"compiler", reply->facts.compiler},
               {"threads", reply->facts.threads},
               {"registers", reply->facts.registers},
               {"shared_bytes", reply->facts.shared_bytes},
               {"compile_seconds", reply->facts.compile_seconds},
               {"time_us", reply->time_us},
               {"conditions", reply->conditions}});
}

Result<WorkerRequest> decode_request(const std::string& line) {
  try {
    const Json json = Json::parse(line);
    WorkerRequest request;
    const std::string operation = json.at("op");
    const auto at = std::ranges::find(kOperations, operation);
    if (at == kOperations.end()) return protocol_error(line);
    request.operation = static_cast<WorkerRequest::Operation>(at - kOperations.begin());
    if (request.operation != WorkerRequest::Operation::kOpen) {
      request.plan = json.at("plan");
      request.compiler = json.at("compiler");
      return request;
    }
    WorkerProblem& p = request.problem;
    p.spec_yaml = json.at("spec");
    p.spec_file = json.at("file");
    ATT_TRY(p.shape, parse_shape(json.at("shape").get<std::string>()));
    const auto pass = pass_from_string(json.at("pass").get<std::string>());
    if (!pass) return protocol_error(line);
    p.pass = *pass;
    p.device = json.at("device");
    p.compilers = json.at("compilers");
    p.cache = json.at("cache");
    p.seed = json.at("seed");
    return request;
  } catch (const Json::exception&) {
    return protocol_error(line);
  }
}

Result<WorkerReply> decode_reply(const std::string& line) {
  try {
    const Json json = Json::parse(line);
    if (json.contains("error")) {
      const Json& error = json["error"];
      const int kind = error.at("kind");
      if (kind < 0 || kind > static_cast<int>(ErrorKind::kUnavailable)) return protocol_error(line);
      return Error{.kind = static_cast<ErrorKind>(kind),
                   .id = error.at("id"),
                   .message = error.at("message"),
                   .hint = error.at("hint"),
                   .detail = error.at("detail")};
    }
    return WorkerReply{.facts = {.build_digest = json.at("build"),
                                 .compiler = json.at("compiler"),
                                 .threads = json.at("threads"),
                                 .registers = json.at("registers"),
                                 .shared_bytes = json.at("shared_bytes"),
                                 .compile_seconds = json.at("compile_seconds")},
                       .time_us = json.at("time_us"),
                       .conditions = json.at("conditions")};
  } catch (const Json::exception&) {
    return protocol_error(line);
  }
}

}  // namespace attune
