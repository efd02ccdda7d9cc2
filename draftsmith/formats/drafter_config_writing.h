// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "draftsmith/formats/hf_config.h"

namespace draftsmith::formats {

/// Who will load a drafter. They look for the same choice in different places.
enum class DrafterReader { kZlab, kSpecForge, kSglang, kVllm, kSpeculators };

/// "zlab", "specforge", "sglang", "vllm" or "speculators". Errors: ConfigError.
DrafterReader parse_drafter_reader(const std::string& name);

/// The target as speculators' files name it.
struct Verifier {
  std::string name;                        // a folder, or a model's name on a hub
  std::vector<std::string> architectures;  // of its config.json
};

/// config.json with all keys of training, where z-lab, SpecForge, SGLang and vLLM look for them;
/// block size and rope in both of their places; `is_causal` only where layers differ from what their
/// types say. `dtype` is that of the weights beside it. Our own
/// checkpoints are such folders.
std::string write_drafter_config(const DrafterConfig& config, const std::string& dtype);

/// The same for one reader, with bfloat16 weights:
///
/// | reader | differs from the above in |
/// |---|---|
/// | zlab | nothing |
/// | specforge | nothing, but `is_causal` is refused, since it does not read it |
/// | sglang | the same, and no `auto_map` |
/// | vllm | `dflash_config.causal` beside `is_causal`; no `auto_map` |
/// | speculators | nested layer config, layer ids + 1, `sliding_window_non_causal` |
///
/// Errors: ConfigError if the drafter was trained in a way that the reader cannot be told:
/// `is_causal` against the layer types, or an unknown number of target layers.
std::string
write_drafter_config(const DrafterConfig& config, DrafterReader reader, const Verifier& verifier);

/// What a person should know before serving the file with this reader; empty if nothing.
std::string describe_reader_limits(const DrafterConfig& config, DrafterReader reader);

}  // namespace draftsmith::formats
