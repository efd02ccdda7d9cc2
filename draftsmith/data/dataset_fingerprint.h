// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// Tells datasets apart whatever their path: the number of sequences, and a checksum of ids and
/// masks of 64 of them, evenly spread.
std::string fingerprint_dataset(const TokenDataset& dataset);

}  // namespace draftsmith::data
