// SPDX-License-Identifier: Apache-2.0
#include "tests/support/tiny_models.h"

#include <limits>

#include "draftsmith/base/random.h"

#include "tests/support/golden.h"

namespace draftsmith::testing {

model::Target load_target(const std::string& fixture_name, const std::string& dtype) {
  model::TargetSettings settings;
  settings.path = fixture(fixture_name).string();
  settings.dtype = dtype;
  return model::Target::load(settings);
}

std::filesystem::path write_broken_target(const TempFolder& folder, int64_t token) {
  const auto reader = golden("targets/qwen3-tiny/model.safetensors");
  formats::NamedTensors tensors;
  for (const std::string& name : reader.names()) {
    tensors.emplace_back(name, reader.tensor(name).clone());
    if (name == "model.embed_tokens.weight")
      tensors.back().second[token].fill_(std::numeric_limits<float>::quiet_NaN());
  }
  const auto path = folder / "broken-target";
  std::filesystem::create_directories(path);
  std::filesystem::copy_file(fixture("targets/qwen3-tiny/config.json"), path / "config.json");
  formats::write_safetensors(path / "model.safetensors", tensors);
  return path;
}

std::string short_name(const std::string& fixture_name) {
  const size_t begin = fixture_name.find('/') + 1;
  return fixture_name.substr(begin, fixture_name.find('-') - begin);
}

model::DrafterSettings tiny_drafter_settings(const std::string& init) {
  model::DrafterSettings settings;
  settings.init = init;
  settings.num_layers = 2;
  settings.block_size = 4;
  settings.target_layer_ids = {0, 2};
  settings.mask_token_id = 205;
  settings.dtype = "float32";
  return settings;
}

std::vector<int64_t> make_ids(int64_t count, int64_t vocab_size, uint64_t seed) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int64_t>(
        hash_key({seed, static_cast<uint64_t>(i)}) % static_cast<uint64_t>(vocab_size)));
  return ids;
}

data::TokenSequence
make_sequence(int64_t length, int64_t first_supervised, uint64_t seed, int64_t vocab_size) {
  data::TokenSequence sequence;
  sequence.ids = make_ids(length, vocab_size, seed);
  for (int64_t i = 0; i < length; ++i)
    sequence.mask.push_back(i >= first_supervised ? 1 : 0);
  return sequence;
}

}  // namespace draftsmith::testing
