module dsp_output_stage #(
    parameter DATA_WIDTH = 16
) (
    input  logic                  clk,
    input  logic                  rst_n,
    input  logic [DATA_WIDTH-1:0] data_in,
    input  logic                  valid_in,
    input  logic [DATA_WIDTH-1:0] rand_mask,
    output logic [DATA_WIDTH-1:0] data_out,
    output logic                  valid_out,
    output logic [31:0]           transfer_count
);
    always_ff @(posedge clk or negedge rst_n)
        if (!rst_n) {valid_out, data_out, transfer_count} <= 0;
        else begin
            valid_out <= valid_in;
            if (valid_in) begin
                data_out <= data_in ^ rand_mask;
                transfer_count <= transfer_count + 1;
            end
        end
endmodule
