// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace draftsmith::app {

/// report_page.html, put into the program by the build. `__RUNS__` stands where runs and evaluations go.
extern const char* const kReportPage;

}  // namespace draftsmith::app
