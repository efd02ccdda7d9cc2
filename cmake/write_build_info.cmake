# SPDX-License-Identifier: Apache-2.0
# Run at every build: writes OUTPUT with the commit of SOURCE and whether tracked files differ from
# it. An unchanged file is left alone, so that nothing is compiled again.
set(commit "unknown")
set(is_changed "false")
execute_process(COMMAND git -C "${SOURCE}" rev-parse HEAD
  OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed EQUAL 0)
  set(commit "${head}")
  execute_process(COMMAND git -C "${SOURCE}" status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(NOT changes STREQUAL "")
    set(is_changed "true")
  endif()
endif()
set(text "#define DS_COMMIT \"${commit}\"\n#define DS_IS_CHANGED ${is_changed}\n")
set(old "")
if(EXISTS "${OUTPUT}")
  file(READ "${OUTPUT}" old)
endif()
if(NOT text STREQUAL old)
  file(WRITE "${OUTPUT}" "${text}")
endif()
