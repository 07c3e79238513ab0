// MCMA: e = y * (y^2 - R) for each component, with R = 1. The desired signal plays no part in it.
module error_calc #(
    parameter DATA_WIDTH = 16
) (
    input  logic signed [DATA_WIDTH-1:0] data_real,
    input  logic signed [DATA_WIDTH-1:0] data_imag,
    input  logic signed [DATA_WIDTH-1:0] desired_real,
    input  logic signed [DATA_WIDTH-1:0] desired_imag,
    output logic signed [DATA_WIDTH-1:0] error_real,
    output logic signed [DATA_WIDTH-1:0] error_imag
);
    localparam FRAC  = DATA_WIDTH - 3;
    localparam CUBED = 3 * DATA_WIDTH;
    localparam signed [CUBED-1:0] R   = 1;
    localparam signed [CUBED-1:0] MAX = (1 << (DATA_WIDTH - 1)) - 1;

    function automatic logic signed [DATA_WIDTH-1:0] modulus_error(input logic signed [DATA_WIDTH-1:0] y);
        logic signed [CUBED-1:0] e;
        e = (y * y - (R <<< 2 * FRAC)) * y >>> 2 * FRAC;
        if (e > MAX) e = MAX;
        else if (e < ~MAX) e = ~MAX;
        return e[DATA_WIDTH-1:0];
    endfunction

    assign error_real = modulus_error(data_real);
    assign error_imag = modulus_error(data_imag);
endmodule
