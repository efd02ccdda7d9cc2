// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/eval/settings.h"

namespace draftsmith::eval {

void add_fields(FieldList& fields, EvalSettings& settings) {
  fields.begin_section("eval");
  fields.add_choice("method", settings.method, {"chain"}, "how drafts are verified");
  fields.add(
      "prompts", settings.prompts, "JSON lines with input_ids and optionally the name of a set");
  fields.add("max_new_tokens", settings.max_new_tokens, "longest answer, in tokens", kAtLeastOne);
  fields.add("ignore_stop", settings.ignore_stop, "whether answers go on after a stop token");
}

void add_fields(FieldList& fields, GenerateSettings& settings) {
  fields.begin_section("generate");
  fields.add("prompts", settings.prompts, "JSON lines with input_ids");
  fields.add("out", settings.out, "folder of the dataset to write");
  fields.add("batch", settings.batch, "prompts answered side by side", kAtLeastOne);
  fields.add("max_new_tokens", settings.max_new_tokens, "longest answer, in tokens", kAtLeastOne);
  fields.add("ignore_stop", settings.ignore_stop, "whether answers go on after a stop token");
}

}  // namespace draftsmith::eval
