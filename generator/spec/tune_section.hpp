// The `tune` section of a spec: what problems its kernels are tuned for.
#pragma once

#include "generator/spec/spec.hpp"
#include "generator/spec/spec_reader.hpp"

namespace attune {

// Reads `node` into spec.tune_shapes, page_size, shared_prefix and lengths. The rest of the spec
// has been read: what a section may say depends on its layout.
Status read_tune_section(const SpecReader& reader, const YamlNode& node, AttentionSpec& spec);

}  // namespace attune
