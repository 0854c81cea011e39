// A mask, its shape and the tensors that decide it, of files that bench/data_regret.py makes.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "generator/plan/mask_data.hpp"
#include "runtime/reference/work.hpp"
#include "runtime/specs/tensor_file.hpp"

namespace attune {

struct Problem {
  AttentionSpec said, real;  // as the file says; with the real tensors
  ProblemShape shape;
};

inline Result<Problem> open_problem(const std::string& directory, const std::string& name) {
  const std::filesystem::path folder = std::filesystem::path(directory) / name;
  const std::string path = folder.string() + ".yaml";
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  Problem problem;
  ATT_TRY(problem.said, parse_spec(text, path));
  problem.shape = problem.said.tune_shapes.at(0);
  std::vector<std::string> given;
  for (const expr::TensorDecl& tensor : problem.said.environment.tensors)
    given.push_back(tensor.name + "=" + (folder / (tensor.name + ".npy")).string());
  problem.real = problem.said;
  ATT_CHECK(give_tensors(given, problem.real));
  ATT_CHECK(check_given(problem.real, problem.shape));
  return problem;
}

// Of the pairs of a query and a key, up to 2^23 of which are looked at.
inline double live_share(AttentionSpec spec, const ProblemShape& shape) {
  spec.head_dim_qk = spec.head_dim_v = 1;  // no part of the mask, most of the memory
  HostProblem drawn = random_problem(spec, shape, 1);
  return forward_work(spec, shape, {std::move(drawn.scalars), std::move(drawn.tensors)}, 1 << 23)
      .live_share;
}

// What one knows of a mask without a device.
inline nlohmann::ordered_json facts_of(const std::string& name, const Problem& problem) {
  const MaskData data = mask_data(problem.real, problem.shape);
  return {{"mask", name},
          {"shape", to_string(problem.shape)},
          {"said", described_samples(problem.said)},
          {"live", live_share(problem.real, problem.shape)},
          {"live tiles", data.live},
          {"full tiles", data.full}};
}

}  // namespace attune
