// SPDX-License-Identifier: Apache-2.0
#include "fuzz/targets.h"

/// DS_FUZZ_TARGET is the function that this program is about.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  draftsmith::fuzz::DS_FUZZ_TARGET(data, size);
  return 0;
}
