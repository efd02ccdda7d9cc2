# SPDX-License-Identifier: Apache-2.0
# libtorch and Arrow come from the pinned wheels of the virtual environment, everything else from
# Debian. Only libtorch_cpu and libc10 are linked: libtorch.so would drag in CUDA libraries.

file(GLOB ds_site_packages "${DS_VENV}/lib/python3*/site-packages")
if(NOT ds_site_packages OR NOT EXISTS "${ds_site_packages}/torch/lib/libtorch_cpu.so")
  message(FATAL_ERROR "libtorch: expected the torch wheel in ${DS_VENV}, got none. Try tools/test, "
                      "which installs it.")
endif()

# Exactly one libarrow.so.NNNN is in the wheel; its number changes with every version.
file(GLOB ds_arrow_library "${ds_site_packages}/pyarrow/libarrow.so.*")
list(LENGTH ds_arrow_library ds_arrow_count)
if(DS_WITH_ARROW AND NOT ds_arrow_count EQUAL 1)
  message(FATAL_ERROR "Arrow: expected one pyarrow/libarrow.so.N in ${DS_VENV}, got "
                      "'${ds_arrow_library}'. Try removing .venv and running tools/test.")
endif()

add_library(ds_torch INTERFACE)
target_include_directories(ds_torch SYSTEM INTERFACE
  "${ds_site_packages}/torch/include"
  "${ds_site_packages}/torch/include/torch/csrc/api/include")
# The torch wheel brings headers of a newer {fmt} than Debian's library, and they come first.
target_compile_definitions(ds_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1 FMT_HEADER_ONLY)
# Old-style rpath entries, because libtorch_cpu finds libcudart and libcupti through ours.
target_link_options(ds_torch INTERFACE
  "LINKER:--disable-new-dtags"
  "LINKER:-rpath,${ds_site_packages}/torch/lib"
  "LINKER:-rpath,${ds_site_packages}/nvidia/cu13/lib"
  "LINKER:-rpath-link,${ds_site_packages}/nvidia/cu13/lib")
target_link_libraries(ds_torch INTERFACE
  "${ds_site_packages}/torch/lib/libtorch_cpu.so"
  "${ds_site_packages}/torch/lib/libc10.so"
  "${ds_site_packages}/torch/lib/libgomp.so.1")  # the one that libtorch_cpu loads

add_library(ds_arrow INTERFACE)
if(DS_WITH_ARROW)
  target_include_directories(ds_arrow SYSTEM INTERFACE "${ds_site_packages}/pyarrow/include")
  target_link_libraries(ds_arrow INTERFACE "${ds_arrow_library}")
  target_link_options(ds_arrow INTERFACE "LINKER:-rpath,${ds_site_packages}/pyarrow")
endif()

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Threads REQUIRED)
find_path(DS_TOMLPLUSPLUS toml++/toml.h REQUIRED)

find_library(DS_HIGHWAY hwy REQUIRED)
add_library(ds_highway INTERFACE)
target_link_libraries(ds_highway INTERFACE ${DS_HIGHWAY})
# Of the instruction sets between these three none is worth its compile time: SSE2, AVX2, AVX-512.
target_compile_definitions(ds_highway INTERFACE HWY_SHARED_DEFINE
  "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)")
# GCC 12 sees uninitialised values in its own AVX-512 intrinsics (GCC bug 105593).
target_compile_options(ds_highway INTERFACE -Wno-maybe-uninitialized)
