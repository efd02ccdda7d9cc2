// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "draftsmith/eval/evaluate.h"
#include "draftsmith/formats/json.h"
#include "draftsmith/formats/vocabulary.h"

namespace draftsmith::app {

/// A way of decoding that was measured.
struct MeasuredMethod {
  std::string method;       // chain, tree
  int64_t tree_budget = 0;  // nodes, for a tree
  eval::EvalReport report;

  std::string name() const;
};

/// What `eval` found: one method, or the methods of a sweep, or two drafters.
struct EvalResult {
  std::vector<MeasuredMethod> methods;  // the first is what was asked for
  /// Of the second drafter against the first, if there are two.
  std::string compared_drafter;
  eval::PairedDifference difference;
};

formats::Json report_as_json(const EvalResult& result);
void print_report(const EvalResult& result);

/// The fastest of the methods.
const MeasuredMethod& find_fastest(const std::vector<MeasuredMethod>& methods);

/// Prints a round: what was proposed, accepted and corrected.
void print_round(const eval::RoundTrace& trace, const formats::Vocabulary& text);

}  // namespace draftsmith::app
