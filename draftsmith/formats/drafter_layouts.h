// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

#include "draftsmith/formats/json.h"
#include "draftsmith/formats/safetensors.h"

namespace draftsmith::formats {

/// config.json of a drafter folder with every key where z-lab's layout has it.
///
/// | writer | recognised by | what is moved |
/// |---|---|---|
/// | z-lab, SpecForge, draftsmith | `dflash_config` | nothing |
/// | speculators | `speculators_model_type` | the keys of `transformer_layer_config`; layer ids - 1 |
/// | TorchSpec | `model_type` dflash | `num_target_layers` counts captured layers there |
/// | flat | no `dflash_config` | `mask_token_id`, `target_layer_ids` |
///
/// A value that a layout fixes is filled in (TorchSpec knows only full layers); nothing is guessed.
/// Errors: DataError for drafters of another kind (DFlash 2, Domino, DSpark, a reduced vocabulary,
/// a mask embedding of its own), which would load but propose something else.
JsonObject read_drafter_json(const std::filesystem::path& folder);

/// Gives tensors of TorchSpec's layout our names: context_proj, context_norm and final_norm.
void use_own_tensor_names(SafetensorsReader& reader);

}  // namespace draftsmith::formats
