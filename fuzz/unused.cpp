// SPDX-License-Identifier: Apache-2.0
// What the readers' files refer to beside reading, and never call here.
#include "draftsmith/base/error.h"
#include "draftsmith/model/drafter.h"
#include "draftsmith/train/optimizer.h"

namespace draftsmith {

void model::Drafter::save(const std::filesystem::path&, torch::ScalarType) const {
  DS_CHECK(false);
}

void train::AdamW::load_state(const formats::SafetensorsReader&, int64_t) { DS_CHECK(false); }

}  // namespace draftsmith
