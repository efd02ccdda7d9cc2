// SPDX-License-Identifier: Apache-2.0
#include "draftsmith/formats/drafter_config_writing.h"
#include "draftsmith/formats/hf_config.h"

#include "fuzz/scratch.h"
#include "fuzz/targets.h"

namespace draftsmith::fuzz {

void read_config(const uint8_t* data, size_t size) {
  const Input input(data, size, 3);
  const auto folder = empty_folder("config");
  write(folder / "config.json", input.way == 2 ? "{}" : input.rest);
  if (input.way == 2) write(folder / "generation_config.json", input.rest);
  may_refuse([&] {
    if (input.way == 2) {
      formats::read_stop_token_ids(folder);
    } else if (input.way == 1) {
      const auto config = formats::read_target_config(folder);
      DS_CHECK(config.num_heads > 0 && config.num_kv_heads > 0 && config.vocab_size > 0);
    } else {
      const auto config = formats::read_drafter_config(folder);
      DS_CHECK(config.block_size > 0 && config.is_sliding.size() == size_t(config.num_layers));
      // What is written is read back the same.
      write(folder / "config.json", formats::write_drafter_config(config, "bfloat16"));
      must_not_refuse([&] {
        const auto again = formats::read_drafter_config(folder);
        DS_CHECK(again.target_layer_ids == config.target_layer_ids);
        DS_CHECK(again.block_size == config.block_size && again.is_sliding == config.is_sliding);
        DS_CHECK(again.rope.type == config.rope.type && again.rope.theta == config.rope.theta);
      });
    }
  });
}

}  // namespace draftsmith::fuzz
