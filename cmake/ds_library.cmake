# SPDX-License-Identifier: Apache-2.0

# One precompiled <torch/types.h> for every target that uses torch (10 s a file without it).
file(WRITE "${PROJECT_BINARY_DIR}/torch_pch.cpp" "// Holds the precompiled header.\n")
add_library(ds_torch_pch OBJECT "${PROJECT_BINARY_DIR}/torch_pch.cpp")
target_link_libraries(ds_torch_pch PRIVATE ds_flags ds_torch)
target_precompile_headers(ds_torch_pch PRIVATE <torch/types.h>)

# ds_library(ops SOURCES a.cpp DEPS base [PRIVATE_DEPS ...]) makes draftsmith::ops.
# DEPS name folders to the left in the order line; tools/check_layers.py checks the includes.
function(ds_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(ds_${name} STATIC ${arg_SOURCES})
  add_library(draftsmith::${name} ALIAS ds_${name})
  target_include_directories(ds_${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(ds_${name} PUBLIC ${arg_DEPS} PRIVATE ds_flags ${arg_PRIVATE_DEPS})
  if(NOT name STREQUAL "base")
    target_precompile_headers(ds_${name} REUSE_FROM ds_torch_pch)
  endif()
endfunction()
