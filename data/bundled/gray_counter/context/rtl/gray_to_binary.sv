module gray_to_binary #(
    parameter WIDTH = 4
) (
    input  logic [WIDTH-1:0] gray,
    output logic [WIDTH-1:0] binary
);

    always @* begin
        binary[WIDTH-1] = gray[WIDTH-1];
        for (int i = WIDTH - 2; i >= 0; i--) begin
            binary[i] = gray[i+1] ^ gray[i];
        end
    end

endmodule
