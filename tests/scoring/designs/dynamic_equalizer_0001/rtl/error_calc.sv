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
    // A wrapped error would drive the taps the wrong way: saturate.
    function automatic logic signed [DATA_WIDTH-1:0] difference(
        input logic signed [DATA_WIDTH-1:0] desired,
        input logic signed [DATA_WIDTH-1:0] actual
    );
        logic signed [DATA_WIDTH:0] full;
        full = desired - actual;
        if (full[DATA_WIDTH] != full[DATA_WIDTH-1])
            return {full[DATA_WIDTH], {(DATA_WIDTH - 1){~full[DATA_WIDTH]}}};
        return full[DATA_WIDTH-1:0];
    endfunction

    assign error_real = difference(desired_real, data_real);
    assign error_imag = difference(desired_imag, data_imag);
endmodule
