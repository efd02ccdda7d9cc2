// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/pipeline/settings.h"

namespace draftsmith::pipeline {

void add_fields(FieldList& fields, ExtractSettings& settings) {
  fields.begin_section("extract");
  fields.add("out", settings.out, "folder to write; one of a stopped extract goes on");
  fields.add_choice(
      "format", settings.format, {"bf16", "fp8", "int8"},
      "how states are stored: bf16 trains bit for bit as with the target in the loop; fp8 (e4m3) "
      "and int8 take half the space, with a scale for each position and layer");
  fields.add(
      "layers", settings.layers, "target layers to store; empty = those that the drafter sees");
}

}  // namespace draftsmith::pipeline
