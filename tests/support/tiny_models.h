// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <torch/types.h>

#include "draftsmith/data/token_dataset.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/model/target.h"

#include "tests/support/temp_folder.h"

namespace draftsmith::testing {

/// A target of tests/fixtures, for example "targets/qwen3-tiny" (vocabulary 211, hidden 64,
/// 4 layers) or "decode/target" (vocabulary 23).
model::Target load_target(const std::string& fixture_name, const std::string& dtype = "float32");

/// Writes a copy of targets/qwen3-tiny whose embedding of one token is not a number: every
/// sequence that holds it gives features that are not finite.
std::filesystem::path write_broken_target(const TempFolder& folder, int64_t token);
/// "llama", "qwen3" or "qwen3_5" of such a name: for parameterised tests.
std::string short_name(const std::string& fixture_name);

/// Settings of a 2-layer drafter for such a target: blocks of 4, layers [0, 2], mask id 205.
model::DrafterSettings tiny_drafter_settings(const std::string& init = "random");

/// Reproducible ids below `vocab_size`.
std::vector<int64_t> make_ids(int64_t count, int64_t vocab_size, uint64_t seed);

/// A sequence of `length` ids whose tokens from `first_supervised` on are supervised.
data::TokenSequence
make_sequence(int64_t length, int64_t first_supervised, uint64_t seed, int64_t vocab_size = 200);

}  // namespace draftsmith::testing
