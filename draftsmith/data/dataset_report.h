// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draftsmith/data/token_dataset.h"

namespace draftsmith::data {

/// A count of rows with the first of them as an example.
struct Finding {
  int64_t count = 0;
  std::string example;  // for people

  void add(const std::string& text) {
    if (count++ == 0) example = text;
  }
};

/// What a look at every token of a dataset finds.
struct DatasetReport {
  int64_t sequences = 0;
  int64_t tokens = 0;
  int64_t supervised_tokens = 0;
  std::vector<int64_t> lengths;  // of the sequences that can be read, ascending
  Finding unreadable;            // ids and mask differ in length, or a value is null
  Finding empty;
  Finding unsupervised;    // no supervised token at all
  Finding no_anchor;       // supervised tokens, but never two in a row
  Finding outside;         // with an id outside the vocabulary
  Finding all_supervised;  // no prompt: the mask is probably missing
  Finding duplicates;      // the ids of an earlier sequence

  /// Length that `share` of the sequences do not exceed; 0 if there are none.
  int64_t length_at(double share) const;
};

/// Reads all of the dataset, with progress. Damaged rows are findings, not errors.
DatasetReport inspect_dataset(const TokenDataset& dataset, int64_t vocab_size);

}  // namespace draftsmith::data
