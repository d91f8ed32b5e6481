from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir
import os


class MimallocConan(ConanFile):
    name = "mimalloc"
    version = "@VERSION@"
    description = "mimalloc with a sampling heap profiler"
    license = "MIT"
    package_type = "library"
    settings = "os", "arch", "compiler", "build_type"
    options = {
        "shared": [True, False],
        "fPIC": [True, False],
        "override": [True, False],
        "secure": [True, False],
        "profiler": [True, False],
    }
    default_options = {"shared": False, "fPIC": True, "override": False, "secure": False, "profiler": True}
    implements = ["auto_shared_fpic"]

    def layout(self):
        cmake_layout(self, src_folder="src")

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        shared = bool(self.options.shared)
        toolchain.cache_variables["MI_BUILD_SHARED"] = shared
        toolchain.cache_variables["MI_BUILD_STATIC"] = not shared
        toolchain.cache_variables["MI_BUILD_OBJECT"] = False
        toolchain.cache_variables["MI_BUILD_TESTS"] = False
        toolchain.cache_variables["MI_INSTALL_TOPLEVEL"] = True
        toolchain.cache_variables["MI_OVERRIDE"] = bool(self.options.override)
        toolchain.cache_variables["MI_SECURE"] = bool(self.options.secure)
        toolchain.cache_variables["MI_PPROF"] = bool(self.options.profiler)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))
        rmdir(self, os.path.join(self.package_folder, "lib", "cmake"))

    def package_info(self):
        # The library's name tells how it was built.
        secure = "-secure" if self.options.secure else ""
        build_type = str(self.settings.build_type).lower()
        debug = "" if build_type in ("release", "relwithdebinfo", "minsizerel") else f"-{build_type}"
        static = "-static" if self.settings.os == "Windows" and not self.options.shared else ""
        dll = ".dll" if self.settings.os == "Windows" and self.options.shared else ""
        self.cpp_info.libs = [f"mimalloc{static}{secure}{debug}{dll}"]
        self.cpp_info.defines = [f"MI_PPROF={int(bool(self.options.profiler))}"]
        target = "mimalloc" if self.options.shared else "mimalloc-static"
        self.cpp_info.set_property("cmake_file_name", "mimalloc")
        self.cpp_info.set_property("cmake_target_name", target)
        if self.settings.os == "Linux":
            self.cpp_info.system_libs = ["pthread", "rt", "atomic"]
        elif self.settings.os == "Windows":
            self.cpp_info.system_libs = ["psapi", "shell32", "user32", "advapi32", "bcrypt"]
