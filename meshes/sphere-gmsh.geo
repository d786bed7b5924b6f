SetFactory("OpenCASCADE");
Sphere(1) = {0, 0, 0, 1};
