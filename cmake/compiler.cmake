# SPDX-License-Identifier: Apache-2.0
# Compiler settings of our own targets, and ccache where it is installed.

find_program(DS_CCACHE ccache)
if(DS_CCACHE)
  # Without the sloppiness a precompiled header is never a cache hit.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${DS_CCACHE})
endif()

add_library(ds_flags INTERFACE)
# For C++ alone: nvcc takes other flags.
set(ds_options -Wall -Wextra -Wconversion -Werror -fopenmp)
# GCC 12 sees overlaps in std::string concatenation that are not there (GCC bug 105651).
list(APPEND ds_options -Wno-restrict -Wno-stringop-overflow)
if(DS_CCACHE)
  list(APPEND ds_options -fpch-preprocess)
endif()
target_compile_options(ds_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${ds_options}>")
target_compile_options(ds_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
if(DS_SANITIZE)
  target_compile_options(ds_flags INTERFACE -fsanitize=${DS_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(ds_flags INTERFACE -fsanitize=${DS_SANITIZE})
endif()
