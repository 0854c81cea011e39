// Random specs of every layout and dtype, and what makes random numbers hostile.
#pragma once

#include <random>
#include <string>

#include "runtime/reference/oracle.hpp"

namespace attune::random_specs {

enum class Wanted { kForward, kBothPasses };

// A spec as YAML, without the line of the schema's version. Now and then parse_spec() refuses one:
// parts that do not go together are drawn beside one another.
std::string draw(std::mt19937_64& random, Wanted wanted);

// Does nothing, or enlarges queries, shifts scores, makes a key hot, tails heavy, rows zero, or
// scores rise by steps along the keys, and says what. Elements that are NaN stay so. Of tensors
// that masks look up some get any numbers, or runs of equal ones in any order.
std::string make_hostile(const AttentionSpec& spec, HostProblem& problem, std::mt19937_64& random);

}  // namespace attune::random_specs
