// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace draftsmith {

/// While it lives, SIGINT and SIGTERM only ask the work to end well; the second one ends the
/// process at once with exit code 130. One at a time.
class StopSignals {
 public:
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();  // the usual effect of both signals again

  /// Whether one of them arrived.
  bool is_requested() const;
};

}  // namespace draftsmith
