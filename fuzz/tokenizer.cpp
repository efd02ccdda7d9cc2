// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/data/prompts.h"
#include "draftsmith/formats/mask_token.h"
#include "draftsmith/formats/vocabulary.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {

void read_tokenizer(const uint8_t* data, size_t size) {
  const Input input(data, size, 3);
  const auto folder = empty_folder("tokenizer");
  may_refuse([&] {
    if (input.way == 2) {
      write(folder / "prompts.jsonl", input.rest);
      for (const auto& prompt : data::read_prompts(folder / "prompts.jsonl", 100))
        DS_CHECK(!prompt.ids.empty());
      return;
    }
    write(
        folder / "tokenizer.json",
        input.way == 0 ? input.rest : R"({"model": {"vocab": {"a": 0}}})");
    if (input.way == 1) write(folder / "tokenizer_config.json", input.rest);
    const auto vocabulary = formats::Vocabulary::from_folder(folder);
    for (int64_t id = -1; id < 5; ++id)
      vocabulary.text(id);
    DS_CHECK(formats::choose_mask_token(folder, 100).id < 100);
  });
}

}  // namespace draftsmith::fuzz
